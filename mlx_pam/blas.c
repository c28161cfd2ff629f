/* The matrix products that MLX calls, with 32-bit sizes, on top of those that NumPy ships, with
   64-bit sizes. blas.py builds this file, points mlx_pam_?gemm at NumPy's routines and makes the
   symbols cblas_?gemm global before MLX is loaded. */
#include <stdint.h>

#define GEMM(letter, number, scalar)                                                             \
  void (*mlx_pam_##letter##gemm)(int, int, int, int64_t, int64_t, int64_t, scalar,               \
                                 const number *, int64_t, const number *, int64_t, scalar,       \
                                 number *, int64_t);                                             \
  void cblas_##letter##gemm(int order, int transpose_a, int transpose_b, int m, int n, int k,    \
                            scalar alpha, const number *a, int lda, const number *b, int ldb,    \
                            scalar beta, number *c, int ldc) {                                   \
    mlx_pam_##letter##gemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb,      \
                           beta, c, ldc);                                                        \
  }

GEMM(s, float, float)
GEMM(d, double, double)
GEMM(c, void, const void *)
