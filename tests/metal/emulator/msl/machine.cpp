// The schedule: threadgroups one after another, their threads taking turns between barriers.
#include "state.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(EMULATOR_THREAD_SANITIZER)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define EMULATOR_RELEASE(fence) __tsan_release(fence)
#define EMULATOR_ACQUIRE(fence) __tsan_acquire(fence)
#else
#define EMULATOR_RELEASE(fence)
#define EMULATOR_ACQUIRE(fence)
#endif

void emulator_kernel(void* const* buffers);  // what the kernel's own file defines

namespace emulator {

Machine* machine = nullptr;
static std::vector<void*> arguments;
static char beginning, ending;  // fences

static void wait(Status status, const char* operation = "", uint line = 0, uint flags = 0) {
  Fiber& self = *machine->current;
  self.status = status;
  self.operation = operation;
  self.line = line;
  self.flags = flags;
  machine->current = nullptr;
  self.context.change_to(machine->scheduler, status == ENDED);
}

void stop(const char* kind, const char* format, ...) {
  Machine& m = *machine;
  if (!m.failed) {
    char text[800];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    snprintf(m.launch->error, sizeof m.launch->error, "%s: %s", kind, text);
    m.failed = true;
  }
  if (m.current) wait(ENDED);
  std::abort();  // nothing returns to a thread that has failed
}

void fail(const char* kind, uint line, const char* text) {
  stop(kind, "%s%s", text, line ? (", at " + describe(line)).c_str() : "");
}

std::string describe(uint where) {
  char text[40];
  snprintf(text, sizeof text, where & ADDRESS ? "@{%x}" : "@{L%u}", where & ~ADDRESS);
  return text;
}

const Position& here() { return machine->current->position; }
uint lane() { return machine->current->position.thread_index_in_simdgroup; }
uint lanes() { return machine->current->simdgroup->count; }
Order order() { return (Order)machine->launch->order; }

const char* exchange(const void* value, uint bytes, const char* operation, uint line) {
  Fiber& self = *machine->current;
  char* slots = self.simdgroup->slots[self.turn++ & 1];
  memcpy(slots + SLOT * lane(), value, bytes);
  wait(AT_SIMD_OPERATION, operation, line);
  machine->launch->simd_operations += lane() == 0;
  return slots;
}

void element_of_lane(uint lane, uint& row, uint& column) {
  row = (lane / 4 & 4) + lane / 2 % 4;
  column = (lane / 4 & 2) * 2 + lane % 2 * 2;
}
static uint lane_of_element(uint row, uint column) {
  return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1);
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
  for (int j = 0; j < 2; ++j) {  // the hardware's order of summing is not documented
    if (order() == RANDOM) {
      float products[8];
      for (int k = 0; k < 8; ++k) products[k] = left[k] * right[j][k];
      for (int step = 1; step < 8; step *= 2)
        for (int k = 0; k < 8; k += 2 * step) products[k] += products[k + step];
      c[j] += products[0];
    } else {
      for (int i = 0; i < 8; ++i) {
        int k = order() == REVERSE ? 7 - i : i;
        c[j] = std::fma(left[k], right[j][k], c[j]);
      }
    }
  }
}

void threadgroup_barrier(uint flags, uint line) {
  Fiber& self = *machine->current;
  char* fence = &machine->fence[self.passed++ & 1];
  (void)fence;
  EMULATOR_RELEASE(fence);
  wait(AT_BARRIER, "threadgroup_barrier", line, flags);
  EMULATOR_ACQUIRE(fence);
}

void simdgroup_barrier(uint flags, uint line) {
  Fiber& self = *machine->current;
  char* fence = &self.simdgroup->fence[self.passed_simd++ & 1];
  (void)fence;
  EMULATOR_RELEASE(fence);
  wait(AT_SIMD_OPERATION, "simdgroup_barrier", line, flags);
  EMULATOR_ACQUIRE(fence);
}

static void fiber_main() {
  Machine& m = *machine;
  m.current->context.arrived(m.scheduler);
  EMULATOR_ACQUIRE(&beginning);
  emulator_kernel(arguments.data());
  EMULATOR_RELEASE(&ending);
  wait(ENDED);
  std::abort();
}

static std::string what(const Fiber& f) {
  std::string text = "thread " + std::to_string(f.position.thread_index_in_threadgroup);
  if (f.status == ENDED) return text + " has ended";
  return text + " is at the " + f.operation + " of " + describe(f.line);
}

static bool diverge(const Fiber& a, const Fiber& b) {
  if (a.status == b.status && a.line == b.line && a.flags == b.flags && !strcmp(a.operation, b.operation))
    return false;
  const char* kind = a.status == AT_BARRIER || b.status == AT_BARRIER ? "divergent barrier" : "divergent simdgroup";
  snprintf(machine->launch->error, sizeof machine->launch->error, "%s: %s, but %s", kind, what(a).c_str(), what(b).c_str());
  return machine->failed = true;
}

static uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}
static void arrange(std::vector<uint>& turns, size_t count, uint order, uint64_t& random) {
  turns.resize(count);
  std::iota(turns.begin(), turns.end(), 0);
  if (order == REVERSE) std::reverse(turns.begin(), turns.end());
  if (order == RANDOM)
    for (size_t i = count; i-- > 1;) std::swap(turns[i], turns[next_random(random) % (i + 1)]);
}

// a barrier orders what was done to the memories that its flags name
static void pass(uint epoch[3], uint flags) {
  for (uint flag = 1; flag <= 2; ++flag) epoch[flag] += (flags & flag) != 0;
}

// all threads of a simdgroup to the next barrier, or their end
static bool run_simdgroup(Simdgroup& group, uint64_t& random) {
  Machine& m = *machine;
  std::vector<uint> turns;
  for (;;) {
    arrange(turns, group.count, m.launch->order, random);
    for (uint turn : turns) {
      Fiber& fiber = m.fibers[group.first + turn];
      if (fiber.status != READY) continue;
      m.current = &fiber;
      m.scheduler.change_to(fiber.context);
      if (m.failed) return false;
    }
    Fiber& first = m.fibers[group.first];
    for (uint i = 1; i < group.count; ++i)
      if (diverge(first, m.fibers[group.first + i])) return false;
    if (first.status != AT_SIMD_OPERATION) return true;
    pass(group.epoch, first.flags);
    for (uint i = 0; i < group.count; ++i) m.fibers[group.first + i].status = READY;
  }
}

static bool run_threadgroup(size_t threads, uint64_t& random) {
  Machine& m = *machine;
  std::vector<uint> turns;
  for (;;) {
    arrange(turns, m.simdgroups.size(), m.launch->order, random);
    for (uint turn : turns)
      if (!run_simdgroup(m.simdgroups[turn], random)) return false;
    Fiber& first = m.fibers[0];
    for (size_t i = 1; i < threads; ++i)
      if (diverge(first, m.fibers[i])) return false;
    if (first.status == ENDED) return true;
    ++m.launch->barriers;
    pass(m.epoch, first.flags);
    for (size_t i = 0; i < threads; ++i) m.fibers[i].status = READY;
  }
}

static Position position_of(const Launch& launch, Triple at, Triple inside, const uint usual[3], const uint size[3]) {
  auto groups = [&](int i) { return (launch.grid[i] + usual[i] - 1) / usual[i]; };
  uint threads = size[0] * size[1] * size[2], most = usual[0] * usual[1] * usual[2];
  uint index = inside.x + size[0] * (inside.y + size[1] * inside.z);
  Position p{};
  p.thread_position_in_grid = {at.x * usual[0] + inside.x, at.y * usual[1] + inside.y, at.z * usual[2] + inside.z};
  p.thread_position_in_threadgroup = inside;
  p.threadgroup_position_in_grid = at;
  p.threads_per_threadgroup = {size[0], size[1], size[2]};
  p.dispatch_threads_per_threadgroup = {usual[0], usual[1], usual[2]};
  p.threads_per_grid = p.grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
  p.threadgroups_per_grid = {groups(0), groups(1), groups(2)};
  p.thread_index_in_threadgroup = index;
  p.thread_index_in_simdgroup = index % LANES;
  p.simdgroup_index_in_threadgroup = index / LANES;
  p.simdgroups_per_threadgroup = (threads + LANES - 1) / LANES;
  p.dispatch_simdgroups_per_threadgroup = (most + LANES - 1) / LANES;
  p.threads_per_simdgroup = p.thread_execution_width = LANES;
  p.thread_index_in_quadgroup = index % 4;
  p.quadgroup_index_in_threadgroup = index / 4;
  p.quadgroups_per_threadgroup = (threads + 3) / 4;
  p.dispatch_quadgroups_per_threadgroup = (most + 3) / 4;
  return p;
}

static void run_grid(Launch& launch) {
  uint usual[3], count[3];  // threads of a threadgroup, threadgroups of the grid
  for (int i = 0; i < 3; ++i) {
    usual[i] = std::min(launch.threadgroup[i], launch.grid[i]);
    count[i] = (launch.grid[i] + usual[i] - 1) / usual[i];
  }
  size_t most = (size_t)usual[0] * usual[1] * usual[2];
  Machine m(most);
  machine = &m;
  m.launch = &launch;
  Stacks stacks(most);
  uint64_t random = launch.seed * 2654435761u + 88172645463325252ull;
  std::vector<uint> turns;
  arrange(turns, (size_t)count[0] * count[1] * count[2], launch.order, random);
  for (uint turn : turns) {
    m.group = turn;
    Triple at{turn % count[0], turn / count[0] % count[1], turn / count[0] / count[1]};
    const uint place[3] = {at.x, at.y, at.z};
    uint size[3];
    for (int i = 0; i < 3; ++i) size[i] = std::min(usual[i], launch.grid[i] - place[i] * usual[i]);
    uint threads = size[0] * size[1] * size[2];
    m.simdgroups.assign((threads + LANES - 1) / LANES, Simdgroup{});
    for (uint i = 0; i < threads; ++i) {
      Simdgroup& group = m.simdgroups[i / LANES];
      group.first = i / LANES * LANES;
      group.count = std::min(LANES, threads - group.first);
      Fiber& fiber = m.fibers[i];
      Triple inside{i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
      fiber.position = position_of(launch, at, inside, usual, size);
      fiber.simdgroup = &group;
      fiber.status = READY;
      fiber.stack = stacks.of(i);
      fiber.turn = fiber.passed = fiber.passed_simd = 0;
      fiber.context.begin(fiber.stack, fiber_main);
    }
    begin_threadgroup();
    EMULATOR_RELEASE(&beginning);
    bool ended = run_threadgroup(threads, random);
    launch.threadgroup_bytes = std::max<uint64_t>(launch.threadgroup_bytes, threadgroup_bytes());
    if (!ended) break;
  }
  EMULATOR_ACQUIRE(&ending);
}

// As a GPU: numbers too small for float's exponent are 0.
static uint64_t flush_small_numbers() {
#if defined(__x86_64__)
  uint64_t before = _mm_getcsr();
  _mm_setcsr((unsigned)before | 0x8040);
#elif defined(__aarch64__)
  uint64_t before, after;
  asm volatile("mrs %0, fpcr" : "=r"(before));
  after = before | 1u << 24;
  asm volatile("msr fpcr, %0" : : "r"(after));
#else
  uint64_t before = 0;
#endif
  return before;
}
static void restore_small_numbers(uint64_t before) {
#if defined(__x86_64__)
  _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(before));
#endif
}

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void emulator_launch(emulator::Launch* launch) {
  using namespace emulator;
  arguments.clear();
  for (uint i = 0; i < launch->buffer_count; ++i) arguments.push_back(launch->buffers[i].data);
  uint64_t before = flush_small_numbers();
  open_memory(*launch);
  run_grid(*launch);
  close_memory();
  restore_small_numbers(before);
  machine = nullptr;
}
