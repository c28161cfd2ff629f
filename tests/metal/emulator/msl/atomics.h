// Relaxed atomics: each is one step, and orders nothing else.
#pragma once
#include "vectors.h"

namespace metal {

enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T value; };
template <class T> struct Part<atomic<T>> : Part<T> {};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

template <class T>
EMULATOR_SILENT T atomic_load_explicit(const atomic<T>* a, memory_order, EMULATOR_LINE) {
  emulator::access(a, sizeof *a, emulator::READ | emulator::ATOMIC, line);
  return a->value;
}
template <class T>
EMULATOR_SILENT void atomic_store_explicit(
    atomic<T>* a, typename Same<T>::type v, memory_order, EMULATOR_LINE) {
  emulator::access(a, sizeof *a, emulator::WRITE | emulator::ATOMIC, line);
  a->value = v;
}
#define EMULATOR_FETCH(name, result)                                                           \
  template <class T> EMULATOR_SILENT T atomic_fetch_##name##_explicit(                         \
      atomic<T>* a, typename Same<T>::type v, memory_order, EMULATOR_LINE) {                   \
    emulator::access(a, sizeof *a, emulator::READ | emulator::ATOMIC, line);                   \
    emulator::access(a, sizeof *a, emulator::WRITE | emulator::ATOMIC, line);                  \
    T old = a->value;                                                                          \
    a->value = result;                                                                         \
    return old;                                                                                \
  }
EMULATOR_FETCH(add, old + v) EMULATOR_FETCH(sub, old - v)
EMULATOR_FETCH(min, v < old ? v : old) EMULATOR_FETCH(max, v > old ? v : old)

}  // namespace metal
