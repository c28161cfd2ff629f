"""PyTorch modules of the PAM and SAM networks."""
