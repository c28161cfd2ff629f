// What a compiled kernel asks of the emulated GPU: who am I, wait for the others, where is memory.
//
// A kernel is compiled against these declarations alone, without the C++ library; machine.cpp,
// memory.cpp and undefined.cpp, compiled once, answer them.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;

// where the caller of a function stands: the default of its last parameter
#define EMULATOR_LINE unsigned line = __builtin_LINE()

// what is not to be reported as an access of the kernel's own
#define EMULATOR_SILENT __attribute__((no_sanitize_thread))

namespace emulator {

struct Triple {
  uint x, y, z;
};

// the attributes of a thread, under the names that the Metal Shading Language gives them
struct Position {
  Triple thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  Triple threads_per_threadgroup, dispatch_threads_per_threadgroup, threads_per_grid, grid_size;
  Triple threadgroups_per_grid, grid_origin;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup;
  uint threads_per_simdgroup, thread_execution_width;
  uint thread_index_in_quadgroup, quadgroup_index_in_threadgroup;
  uint quadgroups_per_threadgroup, dispatch_quadgroups_per_threadgroup;
};

enum Order { FORWARD, REVERSE, RANDOM };
constexpr uint LANES = 32;
constexpr uint SLOT = 64;  // bytes that one lane can hand to the others

const Position& here();
uint lane();
uint lanes();  // threads of this simdgroup: 32 but in the last one of an odd threadgroup
Order order();

// Every lane leaves `bytes` at `value` and waits; then lane i's lie at SLOT * i.
const char* exchange(const void* value, uint bytes, const char* operation, uint line);
// c += a b of 8 x 8 matrices, each lane holding two elements of each
void multiply_accumulate(const float a[2], const float b[2], float c[2], uint line);
// row and first column of a lane's two elements
void element_of_lane(uint lane, uint& row, uint& column);

void threadgroup_barrier(uint flags, uint line);
void simdgroup_barrier(uint flags, uint line);

// The threadgroup array declared on this line, the same for all threads of a threadgroup; of its
// `element`s, `part` bytes at a time are of one thread's concern.
void* threadgroup_array(size_t bytes, size_t element, size_t part, const char* name, uint line);

enum Access { READ = 0, WRITE = 1, COLLECTIVE = 2, ATOMIC = 4 };
// ends the launch if the access is out of bounds, races, or reads what nobody wrote
void access(const void* address, size_t bytes, uint how, uint line);

[[noreturn]] void fail(const char* kind, uint line, const char* text);

}  // namespace emulator
