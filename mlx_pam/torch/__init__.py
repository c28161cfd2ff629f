"""The PyTorch twin, for CUDA, MPS and any CPU: same models, names and checkpoints as in MLX."""
