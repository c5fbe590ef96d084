"""Settings, device groups, inputs, files, memory, random draws, Triton, warnings: no Gaussian process in here."""
