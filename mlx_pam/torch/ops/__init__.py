"""PyTorch functions on tensors: no parameters, no files, no arguments of the command line."""
