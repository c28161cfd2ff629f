// vec<T, N> and its names float2 ... ulong4.
#pragma once
#include "scalars.h"

namespace metal {

template <class T, int N> struct vec;

inline void check_index(int index, int size) {
  if (index < 0 || index >= size) emulator::fail("bounds", 0, "an index outside of its vector");
}

// two neighbouring components under one name: v.xy, v.zw
template <class T, int FIRST> struct Pair {
  T all[FIRST + 2];
  operator vec<T, 2>() const { return vec<T, 2>(all[FIRST], all[FIRST + 1]); }
  Pair& operator=(const vec<T, 2>& v) {
    all[FIRST] = v.x;
    all[FIRST + 1] = v.y;
    return *this;
  }
};

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T a) : x(a), y(a) {}
  vec(T a, T b) : x(a), y(b) {}
  template <class U> explicit vec(const vec<U, 2>& v) : x((T)v.x), y((T)v.y) {}
  T& operator[](int i) { check_index(i, 2); return i ? y : x; }
  const T& operator[](int i) const { check_index(i, 2); return i ? y : x; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    struct { T x, y, z; };
    T all[3];
    Pair<T, 0> xy;
    Pair<T, 1> yz;
  };
  vec() = default;
  vec(T a) : x(a), y(a), z(a) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  vec(const emulator::Triple& t) : x(t.x), y(t.y), z(t.z) {}
  template <class U> explicit vec(const vec<U, 3>& v) : x((T)v.x), y((T)v.y), z((T)v.z) {}
  T& operator[](int i) { check_index(i, 3); return all[i]; }
  const T& operator[](int i) const { check_index(i, 3); return all[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    struct { T x, y, z, w; };
    T all[4];
    Pair<T, 0> xy;
    Pair<T, 1> yz;
    Pair<T, 2> zw;
  };
  vec() = default;
  vec(T a) : x(a), y(a), z(a), w(a) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  template <class U>
  explicit vec(const vec<U, 4>& v) : x((T)v.x), y((T)v.y), z((T)v.z), w((T)v.w) {}
  T& operator[](int i) { check_index(i, 4); return all[i]; }
  const T& operator[](int i) const { check_index(i, 4); return all[i]; }
};

// bytes that one thread may write while another has the next: of a number, in a structure any
template <class T> struct Part {
  static constexpr size_t bytes = is_number_v<T> ? sizeof(T) : 1;
};
template <class T, int N> struct Part<vec<T, N>> : Part<T> {};

template <class T> struct Same { typedef T type; };  // keeps a scalar out of deduction

#define EMULATOR_VECTOR(op)                                                                    \
  template <class T, int N> inline vec<T, N> operator op(vec<T, N> a, const vec<T, N>& b) {    \
    for (int i = 0; i < N; ++i) a[i] = a[i] op b[i];                                           \
    return a;                                                                                  \
  }                                                                                            \
  template <class T, int N> inline vec<T, N> operator op(vec<T, N> a, typename Same<T>::type b) { \
    return a op vec<T, N>(b);                                                                  \
  }                                                                                            \
  template <class T, int N> inline vec<T, N> operator op(typename Same<T>::type a, vec<T, N> b) { \
    return vec<T, N>(a) op b;                                                                  \
  }                                                                                            \
  template <class T, int N> inline vec<T, N>& operator op##=(vec<T, N>& a, const vec<T, N>& b) { \
    return a = a op b;                                                                         \
  }                                                                                            \
  template <class T, int N>                                                                    \
  inline vec<T, N>& operator op##=(vec<T, N>& a, typename Same<T>::type b) {                   \
    return a = a op vec<T, N>(b);                                                              \
  }
EMULATOR_VECTOR(+) EMULATOR_VECTOR(-) EMULATOR_VECTOR(*) EMULATOR_VECTOR(/)
template <class T, int N> inline vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; ++i) a[i] = -a[i];
  return a;
}
template <class T, int N> inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) sum = sum + a[i] * b[i];
  return sum;
}

#define EMULATOR_NAMES(T, name)                                                                \
  typedef vec<T, 2> name##2;                                                                   \
  typedef vec<T, 3> name##3;                                                                   \
  typedef vec<T, 4> name##4;
EMULATOR_NAMES(float, float) EMULATOR_NAMES(half, half) EMULATOR_NAMES(bfloat, bfloat)
EMULATOR_NAMES(char, char) EMULATOR_NAMES(uchar, uchar) EMULATOR_NAMES(short, short)
EMULATOR_NAMES(ushort, ushort) EMULATOR_NAMES(int, int) EMULATOR_NAMES(uint, uint)
EMULATOR_NAMES(long, long) EMULATOR_NAMES(ulong, ulong)

}  // namespace metal
