"""MLX functions on arrays: no parameters, no files, no arguments of the command line."""

from mlx_pam import blas

blas.preload()  # before the first `import mlx`: it decides which BLAS MLX multiplies with on a CPU
