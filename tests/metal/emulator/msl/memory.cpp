// Memory that remembers: bounds, who wrote and read last, and what nobody wrote.
//
// A kernel is compiled with -fsanitize=thread and not linked to its library: the hooks that the
// compiler sets before every load and store are the ones below. Two accesses race if they are of
// different threads, one is a write, and no barrier that names this memory lies between: whether
// the schedule at hand shows it or not.
#include <link.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "state.h"

#if defined(EMULATOR_ADDRESS_SANITIZER)
extern "C" void __asan_poison_memory_region(void const volatile*, size_t);
extern "C" void __asan_unpoison_memory_region(void const volatile*, size_t);
#endif

namespace emulator {

// a thread's number, with how it did it above: COLLECTIVE and ATOMIC times KINDS
constexpr uint NOBODY = ~0u, NUMBER = 0xffff, SEVERAL_LANES = 1u << 16, SEVERAL = 1u << 17;
constexpr uint KINDS = 1u << 18, ATOMICALLY = KINDS * ATOMIC, ANY_GROUP = ~0u;

struct Stamp {  // when somebody did something
  uint thread = NOBODY, group, epoch, simd_epoch, where;
};
struct Cell {
  Stamp write, read;
};

struct Region {
  char* data;
  size_t bytes, element;
  uint flag;  // of the barriers that order it: 1 device, 2 threadgroup
  bool is_output, initialised;
  const char* name;
  uint line;  // where a threadgroup array is declared
  std::unique_ptr<Cell[]> cells;  // none for an input

  size_t cell_bytes() const { return element == 1 || element == 2 || element == 4 ? element : 4; }
};

static std::vector<Region> regions;
static size_t device_regions, last_region, arena_used;
static char *arena, *code_begin, *code_end;
constexpr size_t ARENA = 1 << 26, GAP = 1 << 16, FILL = 0xff;

// the loaded file of this kernel: its code, constants and tables
static int find_code(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    char* begin = (char*)info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD) continue;
    if ((char*)&find_code < begin || (char*)&find_code >= begin + segment.p_memsz) continue;
    code_begin = (char*)info->dlpi_addr;
    for (int j = 0; j < info->dlpi_phnum; ++j)
      if (info->dlpi_phdr[j].p_type == PT_LOAD)
        code_end = code_begin + info->dlpi_phdr[j].p_vaddr + info->dlpi_phdr[j].p_memsz;
    return 1;
  }
  return 0;
}

void open_memory(const Launch& launch) {
  regions.clear();
  dl_iterate_phdr(find_code, nullptr);
  for (uint i = 0; i < launch.buffer_count; ++i) {
    const Buffer& b = launch.buffers[i];
    regions.push_back({b.data, b.bytes, b.element, 1, b.is_output != 0, b.initialised != 0, b.name, 0, nullptr});
    Region& r = regions.back();
#if !defined(EMULATOR_ADDRESS_SANITIZER) && !defined(EMULATOR_THREAD_SANITIZER)
    if (r.is_output) r.cells.reset(new Cell[r.bytes / r.cell_bytes() + 1]);
#endif
  }
  device_regions = regions.size();
  last_region = 0;
  arena = (char*)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  arena_used = 0;
}

// TSan knows no end of a threadgroup: there each has memory of its own
void begin_threadgroup() {
  regions.erase(regions.begin() + (long)device_regions, regions.end());
  last_region = 0;
#if !defined(EMULATOR_THREAD_SANITIZER)
  arena_used = 0;
#endif
#if defined(EMULATOR_ADDRESS_SANITIZER)
  __asan_poison_memory_region(arena, ARENA);
#endif
}

void close_memory() {
  for (size_t i = 0; i < device_regions; ++i) {
    Region& r = regions[i];
    if (!r.cells || r.initialised) continue;
    size_t count = r.bytes / r.cell_bytes(), lacking = 0;
    for (size_t j = 0; j < count; ++j) lacking += r.cells[j].write.thread == NOBODY;
    machine->launch->buffers[i].unwritten = (uint)(lacking * r.cell_bytes() / r.element);
  }
#if defined(EMULATOR_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(arena, ARENA);
#endif
  munmap(arena, ARENA);
  regions.clear();
}

size_t threadgroup_bytes() {
  size_t sum = 0;
  for (size_t i = device_regions; i < regions.size(); ++i) sum += regions[i].bytes;
  return sum;
}

void* threadgroup_array(size_t bytes, size_t element, const char* name, uint line) {
  for (size_t i = device_regions; i < regions.size(); ++i)
    if (regions[i].line == line && !strcmp(regions[i].name, name)) return regions[i].data;
  if (threadgroup_bytes() + bytes > 32768)
    stop("threadgroup memory", "%zu bytes with '%s', of 32768", threadgroup_bytes() + bytes, name);
  char* data = arena + arena_used + GAP;
  arena_used += GAP + (bytes + 255) / 256 * 256;
  if (arena_used + GAP > ARENA) stop("threadgroup memory", "the emulator has no more to give");
#if defined(EMULATOR_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(data, bytes);
#endif
  memset(data, FILL, bytes);
  regions.push_back({data, bytes, element, 2, true, false, name, line, nullptr});
#if !defined(EMULATOR_ADDRESS_SANITIZER) && !defined(EMULATOR_THREAD_SANITIZER)
  regions.back().cells.reset(new Cell[bytes / regions.back().cell_bytes() + 1]);
#endif
  return data;
}

static std::string who(const Stamp& s) {
  if (s.thread & SEVERAL) return "several threads";
  if (s.thread & SEVERAL_LANES) return "several threads of one simdgroup";
  std::string text = "thread " + std::to_string(s.thread & NUMBER);
  return s.group == machine->group ? text : text + " of another threadgroup";
}

// does a barrier, or the order of one thread's program, lie between `before` and `now`?
// (which lane serves which element of a matrix is nothing to build on: COLLECTIVE is another thread)
static bool ordered(const Stamp& before, const Stamp& now) {
  if (before.group != now.group) return false;
  if (before.epoch != now.epoch || !((before.thread ^ now.thread) & ~ATOMICALLY)) return true;
  if (before.thread & SEVERAL) return false;
  bool together = (before.thread & NUMBER) / LANES == (now.thread & NUMBER) / LANES;
  return together && before.simd_epoch != now.simd_epoch;
}

static void note_read(Stamp& last, const Stamp& now) {
  if (last.thread == NOBODY || ordered(last, now)) {
    last = now;
    return;
  }
  bool together = last.group == now.group && !(last.thread & SEVERAL) &&
                  (last.thread & NUMBER) / LANES == (now.thread & NUMBER) / LANES &&
                  last.simd_epoch == now.simd_epoch;
  uint group = last.group == now.group ? now.group : ANY_GROUP;
  uint atomically = last.thread & now.thread & ATOMICALLY;
  last = now;
  last.group = group;
  last.thread = (now.thread & NUMBER) | (together ? SEVERAL_LANES : SEVERAL) | atomically;
}

static void touch_cell(Region& region, size_t index, Cell& cell, const Stamp& now, uint how) {
  bool writes = how & WRITE, atomic = how & ATOMIC;
  auto both_atomic = [&](const Stamp& s) { return atomic && (s.thread & ATOMICALLY); };
  auto report = [&](const Stamp& before, const char* did) {
    stop("race", "%s[%zu]: %s %s it at %s, %s %s it at %s, and no barrier orders %s memory between", region.name,
         index * region.cell_bytes() / region.element, who(before).c_str(), did, describe(before.where).c_str(),
         who(now).c_str(), writes ? "writes" : "reads", describe(now.where).c_str(),
         region.flag == 1 ? "device" : "threadgroup");
  };
  if (cell.write.thread == NOBODY && !writes && !region.initialised)
    stop("uninitialised", "%s[%zu] is read by %s at %s, and was never written", region.name,
         index * region.cell_bytes() / region.element, who(now).c_str(), describe(now.where).c_str());
  if (cell.write.thread != NOBODY && !ordered(cell.write, now) && !both_atomic(cell.write))
    report(cell.write, "wrote");
  if (!writes) return note_read(cell.read, now);
  if (cell.read.thread != NOBODY && !ordered(cell.read, now) && !both_atomic(cell.read))
    report(cell.read, "read");
  cell.write = now;
  cell.read.thread = NOBODY;
}

static Region* region_of(const char* place) {
  auto inside = [&](const Region& r) { return place >= r.data && place < r.data + r.bytes; };
  if (last_region < regions.size() && inside(regions[last_region])) return &regions[last_region];
  for (size_t i = 0; i < regions.size(); ++i)
    if (inside(regions[i])) return &regions[last_region = i];
  return nullptr;
}

[[noreturn]] static void out_of_bounds(const char* place, size_t bytes, uint how, uint where) {
  const Region* nearest = nullptr;
  long distance = 0;
  for (const Region& r : regions) {
    long d = place < r.data ? r.data - place : place - r.data - (long)r.bytes;
    if (!nearest || d < distance) nearest = &r, distance = d;
  }
  const char* does = how & WRITE ? "writes" : "reads";
  uint thread = machine->current->position.thread_index_in_threadgroup;
  if (!nearest || distance > 1 << 26)
    stop("bounds", "thread %u %s %zu bytes outside of every array at %s", thread, does, bytes, describe(where).c_str());
  long index = (place - nearest->data) / (long)nearest->element - (place < nearest->data);
  stop("bounds", "thread %u %s %s[%ld], an array of %zu elements, at %s", thread, does, nearest->name, index,
       nearest->bytes / nearest->element, describe(where).c_str());
}

void touch(const void* address, size_t bytes, uint how, uint where) {
  Machine* m = machine;
  if (!m || !m->current) return;
  const char* place = (const char*)address;
  if ((size_t)(place - m->current->stack) < STACK) return;
  Region* region = region_of(place);
  if (!region) {
    if (place >= code_begin && place < code_end && !(how & WRITE)) return;
    out_of_bounds(place, bytes, how, where);
  }
  if (place + bytes > region->data + region->bytes) out_of_bounds(region->data + region->bytes, bytes, how, where);
  if ((how & WRITE) && !region->is_output)
    stop("input written", "%s[%zu] at %s", region->name, (size_t)(place - region->data) / region->element, describe(where).c_str());
  if (!region->cells) return;
  Fiber& self = *m->current;
  Stamp now;
  now.thread = self.position.thread_index_in_threadgroup | (how & (COLLECTIVE | ATOMIC)) * KINDS;
  now.group = m->group;
  now.epoch = m->epoch[region->flag];
  now.simd_epoch = self.simdgroup->epoch[region->flag];
  now.where = where;
  size_t cell = region->cell_bytes();
  size_t first = (size_t)(place - region->data) / cell, last = (size_t)(place - region->data + bytes - 1) / cell;
  for (size_t i = first; i <= last; ++i) touch_cell(*region, i, region->cells[i], now, how);
}

void access(const void* address, size_t bytes, uint how, uint line) { touch(address, bytes, how, line); }

}  // namespace emulator

// What the compiler calls before the accesses of a kernel.
#if !defined(EMULATOR_ADDRESS_SANITIZER) && !defined(EMULATOR_THREAD_SANITIZER)
#define WHERE (emulator::ADDRESS | (uint)((char*)__builtin_return_address(0) - emulator::code_begin))
#define HOOKS(BYTES)                                                                                          \
  void __tsan_read##BYTES(void* p) { emulator::touch(p, BYTES, emulator::READ, WHERE); }                      \
  void __tsan_write##BYTES(void* p) { emulator::touch(p, BYTES, emulator::WRITE, WHERE); }                    \
  void __tsan_unaligned_read##BYTES(void* p) { emulator::touch(p, BYTES, emulator::READ, WHERE); }            \
  void __tsan_unaligned_write##BYTES(void* p) { emulator::touch(p, BYTES, emulator::WRITE, WHERE); }          \
  void __tsan_read_write##BYTES(void* p) { emulator::touch(p, BYTES, emulator::READ, WHERE); emulator::touch(p, BYTES, emulator::WRITE, WHERE); } \
  void __tsan_unaligned_read_write##BYTES(void* p) { emulator::touch(p, BYTES, emulator::READ, WHERE); emulator::touch(p, BYTES, emulator::WRITE, WHERE); }
extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) { emulator::touch(p, bytes, emulator::READ, WHERE); }
void __tsan_write_range(void* p, size_t bytes) { emulator::touch(p, bytes, emulator::WRITE, WHERE); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  emulator::touch(from, bytes, emulator::READ, WHERE);
  emulator::touch(to, bytes, emulator::WRITE, WHERE);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) { return __tsan_memcpy(to, from, bytes); }
void* __tsan_memset(void* to, int value, size_t bytes) {
  emulator::touch(to, bytes, emulator::WRITE, WHERE);
  return memset(to, value, bytes);
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
#endif
