// Barriers, and what the threads of a simdgroup do together.
//
// Every thread of the group must come to the same one: stricter than the language, where a simd
// function serves whichever threads are active, but what every kernel for whole simdgroups means.
#pragma once
#include "vectors.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
inline void threadgroup_barrier(mem_flags flags, EMULATOR_LINE) {
  emulator::threadgroup_barrier((uint)flags, line);
}
inline void simdgroup_barrier(mem_flags flags, EMULATOR_LINE) {
  emulator::simdgroup_barrier((uint)flags, line);
}

// Sums of the hardware have no documented order: neighbours first, halves first, or one by one.
template <class T, class F> EMULATOR_SILENT T reduce(T value, const char* name, uint line, F join) {
  static_assert(sizeof(T) <= emulator::SLOT, "a value as large as a simd function can carry");
  const char* slots = emulator::exchange(&value, sizeof(T), name, line);
  int count = (int)emulator::lanes();
  T all[emulator::LANES];
  for (int i = 0; i < count; ++i)
    __builtin_memcpy((void*)&all[i], slots + i * emulator::SLOT, sizeof(T));
  if (emulator::order() == emulator::RANDOM) {
    for (int i = 1; i < count; ++i) all[0] = join(all[0], all[i]);
  } else if (emulator::order() == emulator::REVERSE) {
    for (int step = 1; step < count; step *= 2)
      for (int i = 0; i + step < count; i += 2 * step) all[i] = join(all[i], all[i + step]);
  } else {
    for (int step = 16; step; step /= 2)
      for (int i = 0; i < step && i + step < count; ++i) all[i] = join(all[i], all[i + step]);
  }
  return all[0];
}
#define EMULATOR_REDUCTION(name, result)                                                       \
  template <class T> T name(T value, EMULATOR_LINE) {                                          \
    return reduce(value, #name, line, [](T a, T b) { return (T)(result); });                   \
  }
EMULATOR_REDUCTION(simd_sum, a + b)
EMULATOR_REDUCTION(simd_product, a * b)
EMULATOR_REDUCTION(simd_max, a > b ? a : b)
EMULATOR_REDUCTION(simd_min, a < b ? a : b)
EMULATOR_REDUCTION(simd_and, a& b)
EMULATOR_REDUCTION(simd_or, a | b)
EMULATOR_REDUCTION(simd_xor, a ^ b)
inline bool simd_any(bool value, EMULATOR_LINE) {
  return reduce((int)value, "simd_any", line, [](int a, int b) { return a | b; });
}
inline bool simd_all(bool value, EMULATOR_LINE) {
  return reduce((int)value, "simd_all", line, [](int a, int b) { return a & b; });
}

// the value of another lane; of a lane that does not exist it is undefined, here all bits set
template <class T> EMULATOR_SILENT T from_lane(T value, int source, const char* name, uint line) {
  static_assert(sizeof(T) <= emulator::SLOT, "a value as large as a simd function can carry");
  const char* slots = emulator::exchange(&value, sizeof(T), name, line);
  T result;
  if (source >= 0 && source < (int)emulator::lanes())
    __builtin_memcpy((void*)&result, slots + source * emulator::SLOT, sizeof(T));
  else
    __builtin_memset((void*)&result, 0xff, sizeof(T));
  return result;
}
#define EMULATOR_SHUFFLE(name, source)                                                         \
  template <class T> T name(T value, ushort which, EMULATOR_LINE) {                            \
    return from_lane(value, source, #name, line);                                              \
  }
EMULATOR_SHUFFLE(simd_shuffle, which)
EMULATOR_SHUFFLE(simd_shuffle_xor, (int)(emulator::lane() ^ which))
EMULATOR_SHUFFLE(simd_shuffle_down, (int)(emulator::lane() + which))
EMULATOR_SHUFFLE(simd_shuffle_up, (int)emulator::lane() - (int)which)
EMULATOR_SHUFFLE(simd_broadcast, which)
template <class T> T simd_broadcast_first(T value, EMULATOR_LINE) {
  return from_lane(value, 0, "simd_broadcast_first", line);
}

template <class T> EMULATOR_SILENT T scan(T value, bool inclusive, const char* name, uint line) {
  const char* slots = emulator::exchange(&value, sizeof(T), name, line);
  T sum = (T)0;
  for (uint i = 0, self = emulator::lane(); i < self + inclusive; ++i) {
    T one;
    __builtin_memcpy((void*)&one, slots + i * emulator::SLOT, sizeof(T));
    sum = (T)(sum + one);
  }
  return sum;
}
template <class T> T simd_prefix_inclusive_sum(T value, EMULATOR_LINE) {
  return scan(value, true, "simd_prefix_inclusive_sum", line);
}
template <class T> T simd_prefix_exclusive_sum(T value, EMULATOR_LINE) {
  return scan(value, false, "simd_prefix_exclusive_sum", line);
}

}  // namespace metal
