// What the parts of the emulated GPU know of a launch. Included by them alone, not by kernels.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <string>
#include <vector>

#include "fibers.h"
#include "machine.h"

namespace emulator {

// An array that a kernel may reach. Launches pass those of device memory; see run.py.
struct Buffer {
  char* data;
  uint64_t bytes;
  uint32_t element;      // bytes of one element
  uint32_t is_output;    // may be written
  uint32_t initialised;  // has values when the kernel begins
  uint32_t unwritten;    // answer: how many elements an output still lacks
  const char* name;
};

struct Launch {
  Buffer* buffers;
  uint32_t buffer_count, grid[3], threadgroup[3], order;
  uint64_t seed;
  // answers
  uint64_t threadgroup_bytes, barriers, matrix_products, simd_operations;
  char error[1024];
};

enum Status { READY, AT_SIMD_OPERATION, AT_BARRIER, ENDED };

struct Simdgroup {
  uint first, count;           // its threads
  uint epoch[3] = {0, 0, 0};   // barriers passed, by memory flag
  char slots[2][LANES * SLOT]; // what the lanes exchange: written and read in turns
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
  uint turn = 0, passed = 0, passed_simd = 0;
};

struct Machine {
  Launch* launch;
  Context scheduler;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  Fiber* current = nullptr;  // the running thread; none while scheduling
  uint group = 0;            // number of the threadgroup
  uint epoch[3] = {0, 0, 0};
  char fence[2];
  bool failed = false;

  explicit Machine(size_t threads) : fibers(threads) {}
};
extern Machine* machine;

// memory.cpp
void open_memory(const Launch& launch);
void begin_threadgroup();
void close_memory();
size_t threadgroup_bytes();
// `where` is a line of the source, or with ADDRESS set an offset into the machine code
constexpr uint ADDRESS = 1u << 31;
void touch(const void* address, size_t bytes, uint how, uint where);
[[noreturn]] void stop(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
std::string describe(uint where);  // a mark that run.py replaces by the line of the source

}  // namespace emulator
