// The language as declarations alone, for clang's C++ for OpenCL: there device, constant,
// threadgroup and thread are different address spaces, and no pointer turns into another's.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_non_portable_kernel_param_types : enable

#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef __bf16 bfloat;
typedef bfloat bfloat16_t;
typedef half float16_t;

namespace metal {

template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;
template <class A, class B> constexpr constant bool is_same_v = false;
template <class A> constexpr constant bool is_same_v<A, A> = true;
template <class T> struct identity { typedef T type; };

template <class T, int N> struct sized { typedef T type __attribute__((ext_vector_type(N))); };
template <class T, int N> using vec = typename sized<T, N>::type;
#define CHECK_NAMES(T)                                                                         \
  typedef vec<T, 2> T##2;                                                                      \
  typedef vec<T, 3> T##3;                                                                      \
  typedef vec<T, 4> T##4;
CHECK_NAMES(float) CHECK_NAMES(half) CHECK_NAMES(bfloat) CHECK_NAMES(char) CHECK_NAMES(uchar)
CHECK_NAMES(short) CHECK_NAMES(ushort) CHECK_NAMES(int) CHECK_NAMES(uint) CHECK_NAMES(long)
CHECK_NAMES(ulong)
// OpenCL's vectors have no constructors of several components: check.py writes make<float2>(..)
template <class V, class... Parts> constexpr V make(Parts...);

template <class T> struct numeric_limits {
  static constexpr T infinity();
  static constexpr T max();
  static constexpr T min();
  static constexpr T lowest();
  static constexpr T epsilon();
};

// functions of float and half; MLX's own prelude adds bfloat
#define CHECK_UNARY(name)                                                                      \
  float name(float);                                                                           \
  half name(half);                                                                             \
  bfloat name(bfloat);                                                                         \
  template <int N> vec<float, N> name(vec<float, N>);                                          \
  float2 name(float2);                                                                         \
  float3 name(float3);                                                                         \
  float4 name(float4);                                                                         \
  half2 name(half2);                                                                           \
  half4 name(half4);
CHECK_UNARY(exp) CHECK_UNARY(exp2) CHECK_UNARY(log) CHECK_UNARY(log2) CHECK_UNARY(sqrt)
CHECK_UNARY(rsqrt) CHECK_UNARY(sin) CHECK_UNARY(cos) CHECK_UNARY(tanh) CHECK_UNARY(floor)
CHECK_UNARY(ceil) CHECK_UNARY(rint) CHECK_UNARY(round) CHECK_UNARY(trunc) CHECK_UNARY(fabs)
CHECK_UNARY(sign)
float pow(float, float);
float fmod(float, float);
bool isnan(float);
bool isinf(float);
bool isfinite(float);
template <class T> T fma(T, T, T);
template <class T> T abs(T);
template <class T> T min(T, T);
template <class T> T max(T, T);
template <class T> T fmin(T, T);
template <class T> T fmax(T, T);
template <class T> T clamp(T, T, T);
template <class T> T select(T, T, bool);
float dot(float2, float2);
float dot(float3, float3);
float dot(float4, float4);
half dot(half2, half2);
half dot(half4, half4);
namespace fast {
CHECK_UNARY(exp) CHECK_UNARY(exp2) CHECK_UNARY(log) CHECK_UNARY(log2) CHECK_UNARY(rsqrt)
CHECK_UNARY(tanh)
}  // namespace fast
namespace precise {
CHECK_UNARY(exp) CHECK_UNARY(exp2) CHECK_UNARY(log) CHECK_UNARY(log2) CHECK_UNARY(sqrt)
CHECK_UNARY(rsqrt) CHECK_UNARY(sin) CHECK_UNARY(cos) CHECK_UNARY(tanh)
float pow(float, float);
}  // namespace precise

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define CHECK_SIMD(name) template <class T> T name(T);
CHECK_SIMD(simd_sum) CHECK_SIMD(simd_product) CHECK_SIMD(simd_max) CHECK_SIMD(simd_min)
CHECK_SIMD(simd_and) CHECK_SIMD(simd_or) CHECK_SIMD(simd_xor) CHECK_SIMD(simd_broadcast_first)
CHECK_SIMD(simd_prefix_inclusive_sum) CHECK_SIMD(simd_prefix_exclusive_sum)
#define CHECK_SHUFFLE(name) template <class T> T name(T, ushort);
CHECK_SHUFFLE(simd_shuffle) CHECK_SHUFFLE(simd_shuffle_xor) CHECK_SHUFFLE(simd_shuffle_down)
CHECK_SHUFFLE(simd_shuffle_up) CHECK_SHUFFLE(simd_broadcast)
bool simd_any(bool);
bool simd_all(bool);

template <class T, int COLUMNS, int ROWS> struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "the language has matrices of 8 x 8 alone");
  static_assert(is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>,
                "a matrix of float, half or bfloat");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  thread vec<T, 2>& thread_elements() thread;
  const thread vec<T, 2>& thread_elements() const thread;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int C, int R> simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T);
#define CHECK_MATRIX_MEMORY(space)                                                             \
  template <class T> void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const space T*,    \
                                         ulong = 8, ulong2 = 0, bool = false);                 \
  template <class T> void simdgroup_store(const thread simdgroup_matrix<T, 8, 8>&, space T*,   \
                                          ulong = 8, ulong2 = 0, bool = false);
CHECK_MATRIX_MEMORY(device) CHECK_MATRIX_MEMORY(threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(
    thread simdgroup_matrix<D, 8, 8>&, const thread simdgroup_matrix<A, 8, 8>&,
    const thread simdgroup_matrix<B, 8, 8>&, const thread simdgroup_matrix<C, 8, 8>&);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, const thread simdgroup_matrix<A, 8, 8>&,
                        const thread simdgroup_matrix<B, 8, 8>&);

enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T value; };
#define atomic_int atomic<int>  // OpenCL has types of these names
#define atomic_uint atomic<uint>
#define atomic_float atomic<float>
#define CHECK_FETCH(name, space)                                                               \
  template <class T> T atomic_fetch_##name##_explicit(                                         \
      space atomic<T>*, typename identity<T>::type, memory_order);
#define CHECK_ATOMIC(space)                                                                    \
  template <class T> T atomic_load_explicit(const space atomic<T>*, memory_order);             \
  template <class T> void atomic_store_explicit(                                               \
      space atomic<T>*, typename identity<T>::type, memory_order);                             \
  CHECK_FETCH(add, space) CHECK_FETCH(sub, space) CHECK_FETCH(min, space) CHECK_FETCH(max, space)
CHECK_ATOMIC(device) CHECK_ATOMIC(threadgroup)

}  // namespace metal

template <class To, class From> To as_type(From);
using namespace metal;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define METAL_FUNC inline __attribute__((always_inline))
