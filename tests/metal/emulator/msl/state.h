// What the parts of the emulated GPU know of a launch. Included by them alone, not by kernels.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fibers.h"
#include "machine.h"

#if defined(EMULATOR_THREAD_SANITIZER)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define EMULATOR_RELEASE(fence) __tsan_release(fence)
#define EMULATOR_ACQUIRE(fence) __tsan_acquire(fence)
#else
#define EMULATOR_RELEASE(fence)
#define EMULATOR_ACQUIRE(fence)
#endif

namespace emulator {

// An array in device memory; run.py fills in the same structure.
struct Buffer {
  char* data;
  uint64_t bytes;
  uint32_t element;      // bytes of one element
  uint32_t is_output;    // may be written
  uint32_t initialised;  // has values when the kernel begins
  uint32_t unwritten;    // answer: how many elements an output still lacks
  const char* name;
};

// And this one.
struct Launch {
  char* block;  // all buffers lie in it, far apart
  uint64_t block_bytes;
  Buffer* buffers;
  uint32_t buffer_count, grid[3], threadgroup[3], order;
  uint64_t seed;
  // answers
  uint64_t threadgroup_bytes, barriers, matrix_products, simd_operations;
  char error[1024];
};

enum Status { READY, AT_SIMD_OPERATION, AT_BARRIER, ENDED };

struct Simdgroup {
  uint first, count;            // its threads
  uint epoch[3] = {0, 0, 0};    // barriers passed, by the flag of the memory that they order
  char slots[2][LANES * SLOT];  // what the lanes exchange, in turns: one is read, one written
  char fence[2];
};

struct Fiber {
  Context context;
  Status status = READY;
  Position position;
  Simdgroup* simdgroup;
  char* stack;
  const char* operation = "";
  uint line = 0, flags = 0;  // of the operation that it waits at
  uint turn = 0, barriers = 0, simd_barriers = 0;
};

struct Machine {
  Launch* launch;
  Context scheduler;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  Fiber* current = nullptr;  // the running thread; none while scheduling
  uint group = 0;            // the number of the threadgroup
  uint epoch[3] = {0, 0, 0};
  char fence[2], beginning, ending;
  bool failed = false;

  explicit Machine(size_t threads) : fibers(threads) {}
};
extern Machine* machine;

// schedule.cpp: give way until the others have come as far
void wait(Status status, const char* operation = "", uint line = 0, uint flags = 0);

// memory.cpp
void open_memory(const Launch& launch);
void begin_threadgroup();
void close_memory();
size_t threadgroup_bytes();
constexpr uint ADDRESS = 1u << 31;
// `where` is a line of the source, or with ADDRESS an offset into the machine code
void touch(const void* address, size_t bytes, uint how, uint where);
uint offset_of(const void* code);

// machine.cpp
[[noreturn]] void stop(const char* kind, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
std::string describe(uint where);  // a mark that run.py replaces by the line of the source

// TSan takes the C library's memcpy for the running thread's own
inline void copy(void* to, const void* from, size_t bytes) {
#if defined(EMULATOR_THREAD_SANITIZER)
  for (size_t i = 0; i < bytes; ++i)
    static_cast<volatile char*>(to)[i] = static_cast<const volatile char*>(from)[i];
#else
  memcpy(to, from, bytes);
#endif
}

}  // namespace emulator
