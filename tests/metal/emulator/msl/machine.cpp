// What threads ask of the machine but memory: themselves, the other lanes, the barriers.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace emulator {

const Position& here() { return machine->current->position; }
uint lane() { return machine->current->position.thread_index_in_simdgroup; }
uint lanes() { return machine->current->simdgroup->count; }
Order order() { return (Order)machine->launch->order; }

const char* exchange(const void* value, uint bytes, const char* operation, uint line) {
  Fiber& self = *machine->current;
  char* slots = self.simdgroup->slots[self.turn++ & 1];
  copy(slots + SLOT * lane(), value, bytes);
  wait(AT_SIMD_OPERATION, operation, line);
  machine->launch->simd_operations += lane() == 0;
  return slots;
}

// Not documented by Apple, and what every published kernel with thread_elements() relies on.
void element_of_lane(uint lane, uint& row, uint& column) {
  row = (lane / 4 & 4) + lane / 2 % 4;
  column = (lane / 4 & 2) * 2 + lane % 2 * 2;
}
static uint lane_of_element(uint row, uint column) {
  return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1);
}

// the hardware's order of summing is not documented: first to last, last to first, or in pairs
static float dot(const float left[8], const float right[8], float sum) {
  if (order() == RANDOM) {
    float products[8];
    for (int k = 0; k < 8; ++k) products[k] = left[k] * right[k];
    for (int step = 1; step < 8; step *= 2)
      for (int k = 0; k < 8; k += 2 * step) products[k] += products[k + step];
    return sum + products[0];
  }
  for (int i = 0; i < 8; ++i) {
    int k = order() == REVERSE ? 7 - i : i;
    sum = std::fma(left[k], right[k], sum);
  }
  return sum;
}

void multiply_accumulate(const float a[2], const float b[2], float c[2], uint line) {
  if (lanes() != LANES) fail("lanes", line, "a matrix product in a simdgroup of under 32 threads");
  const float mine[4] = {a[0], a[1], b[0], b[1]};
  const char* slots = exchange(mine, sizeof mine, "simdgroup_multiply_accumulate", line);
  machine->launch->matrix_products += lane() == 0;
  uint row, column;
  element_of_lane(lane(), row, column);
  float left[8], right[2][8];
  for (uint k = 0; k < 8; ++k) {
    const float* of_a = (const float*)(slots + SLOT * lane_of_element(row, k));
    const float* of_b = (const float*)(slots + SLOT * lane_of_element(k, column));
    left[k] = of_a[k % 2];
    right[0][k] = of_b[2];
    right[1][k] = of_b[3];
  }
  for (int j = 0; j < 2; ++j) c[j] = dot(left, right[j], c[j]);
}

void threadgroup_barrier(uint flags, uint line) {
  char* fence = &machine->fence[machine->current->barriers++ & 1];
  EMULATOR_RELEASE(fence);
  wait(AT_BARRIER, "threadgroup_barrier", line, flags);
  EMULATOR_ACQUIRE(fence);
  (void)fence;
}

void simdgroup_barrier(uint flags, uint line) {
  Fiber& self = *machine->current;
  char* fence = &self.simdgroup->fence[self.simd_barriers++ & 1];
  EMULATOR_RELEASE(fence);
  wait(AT_SIMD_OPERATION, "simdgroup_barrier", line, flags);
  EMULATOR_ACQUIRE(fence);
  (void)fence;
}

void stop(const char* kind, const char* format, ...) {
  Machine& m = *machine;
  if (!m.failed) {
    char text[sizeof m.launch->error - 64];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    snprintf(m.launch->error, sizeof m.launch->error, "%s: %s", kind, text);
    m.failed = true;
  }
  wait(ENDED);
  std::abort();  // not reached: nothing returns to a thread that has failed
}

void fail(const char* kind, uint line, const char* text) {
  if (line) stop(kind, "%s, at %s", text, describe(line).c_str());
  stop(kind, "%s", text);
}

std::string describe(uint where) {
  char text[40];
  snprintf(text, sizeof text, where & ADDRESS ? "@{%x}" : "@{L%u}", where & ~ADDRESS);
  return text;
}

}  // namespace emulator
