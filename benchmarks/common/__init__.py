"""What benchmarks share: data, recording, drawing."""
