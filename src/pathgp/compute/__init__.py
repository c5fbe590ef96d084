"""What has no Gaussian process in it: inputs, files, memory, random draws, Triton, warnings."""
