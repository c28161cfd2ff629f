// half and bfloat, and the little of <type_traits> and <limits> that kernels use.
#pragma once
#include "machine.h"

namespace metal {

template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;

template <class T> struct is_integral { static constexpr bool value = false; };
#define EMULATOR_INTEGRAL(T) \
  template <> struct is_integral<T> { static constexpr bool value = true; };
EMULATOR_INTEGRAL(bool) EMULATOR_INTEGRAL(char) EMULATOR_INTEGRAL(signed char)
EMULATOR_INTEGRAL(uchar) EMULATOR_INTEGRAL(short) EMULATOR_INTEGRAL(ushort) EMULATOR_INTEGRAL(int)
EMULATOR_INTEGRAL(uint) EMULATOR_INTEGRAL(long) EMULATOR_INTEGRAL(ulong)
template <class T> constexpr bool is_integral_v = is_integral<T>::value;

template <class To, class From> inline To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
  To to;
  __builtin_memcpy((void*)&to, (const void*)&from, sizeof to);
  return to;
}

struct BfloatBits {
  static constexpr bool implicit = false;  // whether a float turns into one by itself
  static float widen(ushort bits) { return as_type<float>((uint)bits << 16); }
  static ushort narrow(float value) {
    uint bits = as_type<uint>(value);
    if (value != value) return (ushort)(bits >> 16 | 64);
    return (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);  // to nearest, ties to even
  }
};

struct HalfBits {
  static constexpr bool implicit = true;
  static float widen(ushort bits) {
    uint sign = (uint)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return as_type<float>(sign | 0x7f800000u | rest << 13);
    if (rest >= 0x0400) return as_type<float>(sign | ((rest << 13) + (112u << 23)));
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
  }
  static ushort narrow(float value) {
    uint bits = as_type<uint>(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (ushort)(sign | 0x7e00);
    if (rest >= 0x47800000u) return (ushort)(sign | 0x7c00);  // 2^16 and more
    if (rest < 0x38800000u) {  // less than 2^-14: in units of 2^-24
      float units = as_type<float>(rest) * 0x1p24f;
      uint whole = (uint)units;
      float left = units - (float)whole;
      return (ushort)(sign | (whole + (left > 0.5f || (left == 0.5f && (whole & 1)))));
    }
    uint rounded = rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u);
    return (ushort)(sign | rounded >> 13);
  }
};

// a 16-bit number that computes in float and rounds each result
template <class Bits> struct Small {
  ushort bits;
  Small() = default;
  template <class U> using If = enable_if_t<!is_same_v<U, Small>, decltype((float)U())>;
  template <class U, class = If<U>, enable_if_t<Bits::implicit && sizeof(U), int> = 0>
  Small(U value) : bits(Bits::narrow((float)value)) {}
  template <class U, class = If<U>, enable_if_t<!Bits::implicit && sizeof(U), int> = 0>
  explicit Small(U value) : bits(Bits::narrow((float)value)) {}
  operator float() const { return Bits::widen(bits); }
  Small operator-() const { Small r; r.bits = bits ^ 0x8000; return r; }
  template <class U> Small& operator+=(U b) { return *this = Small((float)*this + (float)b); }
  template <class U> Small& operator-=(U b) { return *this = Small((float)*this - (float)b); }
  template <class U> Small& operator*=(U b) { return *this = Small((float)*this * (float)b); }
  template <class U> Small& operator/=(U b) { return *this = Small((float)*this / (float)b); }
};
#define EMULATOR_ARITHMETIC(op)                                                                \
  template <class B> inline Small<B> operator op(Small<B> a, Small<B> b) {                      \
    return Small<B>((float)a op(float) b);                                                      \
  }                                                                                             \
  template <class B, class I, class = enable_if_t<is_integral_v<I>>>                            \
  inline Small<B> operator op(Small<B> a, I b) {                                                \
    return Small<B>((float)a op(float) b);                                                      \
  }                                                                                             \
  template <class B, class I, class = enable_if_t<is_integral_v<I>>>                            \
  inline Small<B> operator op(I a, Small<B> b) {                                                \
    return Small<B>((float)a op(float) b);                                                      \
  }
EMULATOR_ARITHMETIC(+) EMULATOR_ARITHMETIC(-) EMULATOR_ARITHMETIC(*) EMULATOR_ARITHMETIC(/)

typedef Small<BfloatBits> bfloat;
// the compiler's own half where C++ has one, for its conversions are Metal's
#if defined(__clang__) || __GNUC__ >= 13 || (__GNUC__ == 12 && defined(__x86_64__))
#define EMULATOR_NATIVE_HALF defined(__FLT16_MANT_DIG__) && !defined(EMULATOR_OWN_HALF)
#else
#define EMULATOR_NATIVE_HALF 0
#endif
#if EMULATOR_NATIVE_HALF
typedef _Float16 half;
#else
typedef Small<HalfBits> half;
#endif

template <class T> constexpr bool is_number_v =
    is_integral_v<T> || is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>;

template <class T> struct numeric_limits;
#define EMULATOR_LIMITS(T, LARGEST, LOWEST, SMALLEST, EPSILON, INFINITE)                       \
  template <> struct numeric_limits<T> {                                                       \
    static constexpr T max() { return (T)LARGEST; }                                            \
    static constexpr T lowest() { return (T)LOWEST; }                                          \
    static constexpr T min() { return (T)SMALLEST; }                                           \
    static constexpr T epsilon() { return (T)EPSILON; }                                        \
    static constexpr T infinity() { return (T)INFINITE; }                                      \
  };
EMULATOR_LIMITS(float, __FLT_MAX__, -__FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__, __builtin_inff())
EMULATOR_LIMITS(int, __INT_MAX__, (-__INT_MAX__ - 1), (-__INT_MAX__ - 1), 0, 0)
EMULATOR_LIMITS(uint, ~0u, 0, 0, 0, 0)
EMULATOR_LIMITS(short, 32767, -32768, -32768, 0, 0)
EMULATOR_LIMITS(ushort, 65535, 0, 0, 0, 0)
EMULATOR_LIMITS(long, __LONG_MAX__, (-__LONG_MAX__ - 1), (-__LONG_MAX__ - 1), 0, 0)
#define EMULATOR_SMALL_LIMITS(T, LARGEST, SMALLEST, EPSILON)                                   \
  template <> struct numeric_limits<T> {                                                       \
    static T max() { return (T)LARGEST; }                                                      \
    static T lowest() { return (T)-LARGEST; }                                                  \
    static T min() { return (T)SMALLEST; }                                                     \
    static T epsilon() { return (T)EPSILON; }                                                  \
    static T infinity() { return (T)__builtin_inff(); }                                        \
  };
EMULATOR_SMALL_LIMITS(half, 65504.0f, 0x1p-14f, 0x1p-10f)
EMULATOR_SMALL_LIMITS(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f)

}  // namespace metal
