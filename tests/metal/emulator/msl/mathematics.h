// Functions of numbers, as inexact as the language allows.
#pragma once
#include "vectors.h"

namespace metal {

// A result that is off by up to `ulps` units in the last place, by a hash of x: repeatable, and
// exact only where x or the result is 0, or the result is no number.
inline float inexact(float y, float x, float ulps) {
  if (x == 0.0f || y == 0.0f || !(y - y == 0.0f)) return y;
  uint hash = as_type<uint>(x) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  float share = (float)(int)(hash ^ hash >> 13) * 0x1p-31f;  // -1 ... 1
  return y + y * (share * (ulps - 1) * 0x1p-24f);  // one unit is for y itself and this sum
}

#define EMULATOR_MAPPED(name)                                                                  \
  inline half name(half x) { return (half)name((float)x); }                                    \
  inline bfloat name(bfloat x) { return (bfloat)name((float)x); }                              \
  template <class T, int N> inline vec<T, N> name(vec<T, N> x) {                               \
    for (int i = 0; i < N; ++i) x[i] = name(x[i]);                                             \
    return x;                                                                                  \
  }
#define EMULATOR_EXACT(name)                                                                   \
  inline float name(float x) { return __builtin_##name##f(x); }                                \
  EMULATOR_MAPPED(name)
#define EMULATOR_INEXACT(name)                                                                 \
  inline float name(float x) { return inexact(__builtin_##name##f(x), x, 4); }                 \
  EMULATOR_MAPPED(name)
EMULATOR_EXACT(sqrt) EMULATOR_EXACT(floor) EMULATOR_EXACT(ceil) EMULATOR_EXACT(rint)
EMULATOR_EXACT(round) EMULATOR_EXACT(trunc) EMULATOR_EXACT(fabs)
EMULATOR_INEXACT(exp) EMULATOR_INEXACT(exp2) EMULATOR_INEXACT(log) EMULATOR_INEXACT(log2)
EMULATOR_INEXACT(sin) EMULATOR_INEXACT(cos) EMULATOR_INEXACT(tanh)
inline float rsqrt(float x) { return inexact(1.0f / sqrt(x), x, 2); }
EMULATOR_MAPPED(rsqrt)
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float pow(float a, float b) { return inexact(__builtin_powf(a, b), a, 16); }
inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
inline float fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

template <class T> inline T abs(T x) { return x < T(0) ? T(-x) : x; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T fmin(T a, T b) { return a != a ? b : b < a ? b : a; }
template <class T> inline T fmax(T a, T b) { return a != a ? b : a < b ? b : a; }
template <class T> inline T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T> inline T select(T a, T b, bool second) { return second ? b : a; }

namespace fast {
inline float exp(float x) { return inexact(__builtin_expf(x), x, 3 + floor(fabs(2 * x))); }
inline float exp2(float x) { return inexact(__builtin_exp2f(x), x, 3 + floor(fabs(2 * x))); }
inline float log(float x) { return inexact(__builtin_logf(x), x, 3); }
inline float log2(float x) { return inexact(__builtin_log2f(x), x, 3); }
inline float rsqrt(float x) { return inexact(1.0f / __builtin_sqrtf(x), x, 2); }
inline float tanh(float x) { return inexact(__builtin_tanhf(x), x, 5); }
}  // namespace fast
namespace precise {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::log;
using metal::log2;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tanh;
}  // namespace precise

}  // namespace metal
