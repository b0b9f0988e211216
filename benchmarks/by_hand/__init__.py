"""What the benchmarks are held against: the same programs written by hand in plain PyTorch."""
