"""Code that benchmarks share: data, options, recording, drawing."""
