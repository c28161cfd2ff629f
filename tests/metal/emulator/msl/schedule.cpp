// The schedule: threadgroups one after another, their threads taking turns between barriers.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "state.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

void emulator_kernel(void* const* buffers);  // what the kernel's own file defines

namespace emulator {

Machine* machine = nullptr;
static std::vector<void*> arguments;

void wait(Status status, const char* operation, uint line, uint flags) {
  Fiber& self = *machine->current;
  self.status = status;
  self.operation = operation;
  self.line = line;
  self.flags = flags;
  machine->current = nullptr;
  self.context.change_to(machine->scheduler, status == ENDED);
}

static void live() {
  Machine& m = *machine;
  m.current->context.arrived(m.scheduler);
  EMULATOR_ACQUIRE(&m.beginning);
  emulator_kernel(arguments.data());
  EMULATOR_RELEASE(&m.ending);
  wait(ENDED);
  std::abort();  // not reached
}

static std::string state_of(const Fiber& f) {
  std::string text = "thread " + std::to_string(f.position.thread_index_in_threadgroup);
  if (f.status == ENDED) return text + " has ended";
  return text + " is at the " + f.operation + " of " + describe(f.line);
}

static bool diverge(const Fiber& a, const Fiber& b) {
  if (a.status == b.status && a.line == b.line && a.flags == b.flags &&
      !strcmp(a.operation, b.operation))
    return false;
  bool simd = a.status == AT_SIMD_OPERATION || b.status == AT_SIMD_OPERATION;
  Launch& launch = *machine->launch;
  snprintf(launch.error, sizeof launch.error, "%s: %s, but %s",
           simd ? "divergent simdgroup" : "divergent barrier", state_of(a).c_str(),
           state_of(b).c_str());
  return machine->failed = true;
}

static void arrange(std::vector<uint>& turns, size_t count, uint64_t& random) {
  turns.resize(count);
  std::iota(turns.begin(), turns.end(), 0);
  Order order = (Order)machine->launch->order;
  if (order == REVERSE) std::reverse(turns.begin(), turns.end());
  if (order != RANDOM) return;
  for (size_t i = count; i-- > 1;) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    std::swap(turns[i], turns[random % (i + 1)]);
  }
}

// a barrier orders what was done to the memories that its flags name
static void pass(uint epoch[3], uint flags) {
  for (uint flag = 1; flag <= 2; ++flag) epoch[flag] += (flags & flag) != 0;
}

// all threads of a simdgroup to the next threadgroup barrier, or to their end
static bool run_simdgroup(Simdgroup& group, uint64_t& random) {
  Machine& m = *machine;
  Fiber* fibers = &m.fibers[group.first];
  std::vector<uint> turns;
  for (;;) {
    arrange(turns, group.count, random);
    for (uint turn : turns) {
      if (fibers[turn].status != READY) continue;
      m.current = &fibers[turn];
      m.scheduler.change_to(fibers[turn].context);
      if (m.failed) return false;
    }
    for (uint i = 1; i < group.count; ++i)
      if (diverge(fibers[0], fibers[i])) return false;
    if (fibers[0].status != AT_SIMD_OPERATION) return true;
    pass(group.epoch, fibers[0].flags);
    for (uint i = 0; i < group.count; ++i) fibers[i].status = READY;
  }
}

static bool run_threadgroup(size_t threads, uint64_t& random) {
  Machine& m = *machine;
  std::vector<uint> turns;
  for (;;) {
    arrange(turns, m.simdgroups.size(), random);
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

struct Grid {
  uint usual[3], count[3];  // threads of a threadgroup, but at the grid's ends; threadgroups

  explicit Grid(const Launch& launch) {
    for (int i = 0; i < 3; ++i) {
      usual[i] = std::min(launch.threadgroup[i], launch.grid[i]);
      count[i] = (launch.grid[i] + usual[i] - 1) / usual[i];
    }
  }
  size_t threadgroups() const { return (size_t)count[0] * count[1] * count[2]; }
  uint threads() const { return usual[0] * usual[1] * usual[2]; }
};

static Position position_of(const Launch& launch, const Grid& grid, Triple at, Triple size,
                            uint index) {
  const uint* usual = grid.usual;
  uint threads = size.x * size.y * size.z, most = grid.threads();
  Triple inside{index % size.x, index / size.x % size.y, index / size.x / size.y};
  Position p{};
  p.thread_position_in_grid = {at.x * usual[0] + inside.x, at.y * usual[1] + inside.y,
                               at.z * usual[2] + inside.z};
  p.thread_position_in_threadgroup = inside;
  p.threadgroup_position_in_grid = at;
  p.threads_per_threadgroup = size;
  p.dispatch_threads_per_threadgroup = {usual[0], usual[1], usual[2]};
  p.threads_per_grid = p.grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
  p.threadgroups_per_grid = {grid.count[0], grid.count[1], grid.count[2]};
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
  const Grid grid(launch);
  Machine m(grid.threads());
  machine = &m;
  m.launch = &launch;
  open_memory(launch);
  Stacks stacks(grid.threads());
  uint64_t random = launch.seed * 2654435761u + 88172645463325252ull;
  std::vector<uint> turns;
  arrange(turns, grid.threadgroups(), random);
  for (uint turn : turns) {
    m.group = turn;
    Triple at{turn % grid.count[0], turn / grid.count[0] % grid.count[1],
              turn / grid.count[0] / grid.count[1]};
    Triple size{std::min(grid.usual[0], launch.grid[0] - at.x * grid.usual[0]),
                std::min(grid.usual[1], launch.grid[1] - at.y * grid.usual[1]),
                std::min(grid.usual[2], launch.grid[2] - at.z * grid.usual[2])};
    uint threads = size.x * size.y * size.z;
    m.simdgroups.assign((threads + LANES - 1) / LANES, Simdgroup{});
    for (uint i = 0; i < threads; ++i) {
      Simdgroup& group = m.simdgroups[i / LANES];
      group.first = i / LANES * LANES;
      group.count = std::min(LANES, threads - group.first);
      Fiber& fiber = m.fibers[i];
      fiber.position = position_of(launch, grid, at, size, i);
      fiber.simdgroup = &group;
      fiber.status = READY;
      fiber.stack = stacks.of(i);
      fiber.turn = fiber.barriers = fiber.simd_barriers = 0;
      fiber.context.begin(fiber.stack, live);
    }
    begin_threadgroup();
    EMULATOR_RELEASE(&m.beginning);
    bool ended = run_threadgroup(threads, random);
    launch.threadgroup_bytes = std::max<uint64_t>(launch.threadgroup_bytes, threadgroup_bytes());
    if (!ended) break;
  }
  EMULATOR_ACQUIRE(&m.ending);
  close_memory();
  machine = nullptr;
}

// As a GPU does: numbers under the range of float's exponent are 0. Returns what was set before.
static uint64_t flush_small_numbers() {
  uint64_t before = 0;
#if defined(__x86_64__)
  before = _mm_getcsr();
  _mm_setcsr((unsigned)before | 0x8040);
#elif defined(__aarch64__)
  asm volatile("mrs %0, fpcr" : "=r"(before));
  asm volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
#endif
  return before;
}
static void restore_small_numbers(uint64_t before) {
#if defined(__x86_64__)
  _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(before));
#endif
  (void)before;
}

// clang has no handler for pointers out of a thread's own arrays: it sets a trap
class Traps {
 public:
  Traps() {
    struct sigaction action = {};
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int i = 0; i < 2; ++i) sigaction(SIGNALS[i], &action, &before[i]);
  }
  ~Traps() {
    for (int i = 0; i < 2; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
  }

 private:
  static constexpr int SIGNALS[2] = {SIGILL, SIGTRAP};  // as the processor has it
  struct sigaction before[2];

  static void caught(int, siginfo_t* info, void*) {
    if (!machine || !machine->current) std::abort();
    const uint where = offset_of((const char*)info->si_addr + 1);
    stop("undefined behaviour", "what cannot be, at %s", describe(where).c_str());
  }
};

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void emulator_launch(emulator::Launch* launch) {
  using namespace emulator;
  arguments.clear();
  for (uint i = 0; i < launch->buffer_count; ++i) arguments.push_back(launch->buffers[i].data);
  uint64_t before = flush_small_numbers();
  Traps traps;
  run_grid(*launch);
  restore_small_numbers(before);
}
