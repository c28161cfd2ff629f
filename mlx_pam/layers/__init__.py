"""MLX modules of the PAM and SAM networks."""

from mlx_pam import ops  # noqa: F401 - first, since it loads the BLAS that MLX is to use
