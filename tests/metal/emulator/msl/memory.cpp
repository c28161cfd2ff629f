// Memory that remembers: bounds, who wrote and read last, and what nobody wrote.
//
// Two accesses race if they are of different threads, one is a write, and no barrier that names
// this memory lies between: whether or not the schedule at hand shows it.
#include <link.h>

#include <algorithm>
#include <memory>

#include "state.h"

#if defined(EMULATOR_ADDRESS_SANITIZER)
extern "C" void __asan_poison_memory_region(void const volatile*, size_t);
extern "C" void __asan_unpoison_memory_region(void const volatile*, size_t);
#define EMULATOR_HIDE(data, bytes) __asan_poison_memory_region(data, bytes)
#define EMULATOR_SHOW(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define EMULATOR_HIDE(data, bytes)
#define EMULATOR_SHOW(data, bytes)
#endif

#if defined(EMULATOR_THREAD_SANITIZER)
extern "C" void __tsan_read_range(void*, size_t);
extern "C" void __tsan_write_range(void*, size_t);
#endif

namespace emulator {

// a thread's number, with how it did it above: COLLECTIVE and ATOMIC times KINDS
constexpr uint NOBODY = ~0u, NUMBER = 0xffff, SEVERAL_LANES = 1u << 16, SEVERAL = 1u << 17;
constexpr uint KINDS = 1u << 18, ATOMICALLY = KINDS * ATOMIC, ANY_GROUP = ~0u;

struct Stamp {  // who did something, when, and where in the source
  uint thread = NOBODY, group, epoch, simd_epoch, where;
};
struct Cell {
  Stamp write, read;
};

struct Region {
  char* data;
  size_t bytes, element, part;  // parts of an element are watched by themselves
  uint flag;  // of the barriers that order it: 1 device, 2 threadgroup
  bool is_output, initialised;
  const char* name;
  uint line;                      // where a threadgroup array is declared
  std::unique_ptr<Cell[]> cells;  // none for an input, nor where a sanitizer watches

  size_t cell_count() const { return (bytes + part - 1) / part; }
  bool has(const char* place) const { return place >= data && place < data + bytes; }
};

constexpr size_t ARENA = 1 << 26, GAP = 1 << 16;  // threadgroup memory, and between its arrays
static std::vector<Region> regions;
static size_t device_regions, last_region, arena_used;
static char *arena, *code_begin, *code_end;

static void watch(Region region) {
#if !defined(EMULATOR_ADDRESS_SANITIZER) && !defined(EMULATOR_THREAD_SANITIZER)
  if (region.is_output) region.cells.reset(new Cell[region.cell_count()]);
#endif
  regions.push_back(std::move(region));
}

// the library of this kernel: its code, and constants that it may read
static int find_code(dl_phdr_info* info, size_t, void*) {
  char *base = (char*)info->dlpi_addr, *end = base;
  bool ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    char* begin = base + segment.p_vaddr;
    end = begin + segment.p_memsz;
    ours |= (char*)&find_code >= begin && (char*)&find_code < end;
  }
  if (ours) code_begin = base, code_end = end;
  return ours;
}

uint offset_of(const void* code) { return ADDRESS | (uint)((const char*)code - code_begin); }

void open_memory(const Launch& launch) {
  dl_iterate_phdr(find_code, nullptr);
  EMULATOR_HIDE(launch.block, launch.block_bytes);
  regions.clear();
  for (uint i = 0; i < launch.buffer_count; ++i) {
    const Buffer& b = launch.buffers[i];
    watch({b.data, b.bytes, b.element, std::min(b.element, 4u), 1, b.is_output != 0,
           b.initialised != 0, b.name, 0, {}});
    EMULATOR_SHOW(b.data, b.bytes);
  }
  device_regions = regions.size();
  arena = reserve(ARENA);
  arena_used = 0;
}

void begin_threadgroup() {
  regions.erase(regions.begin() + (long)device_regions, regions.end());
#if defined(EMULATOR_THREAD_SANITIZER)
  if (arena_used > ARENA / 2) arena_used = 0;  // TSan knows no end of a threadgroup: go on
#else
  arena_used = 0;
#endif
  EMULATOR_HIDE(arena, ARENA);
}

void close_memory() {
  for (size_t i = 0; i < device_regions; ++i) {
    Region& r = regions[i];
    if (!r.cells || r.initialised) continue;
    size_t lacking = 0;
    for (size_t j = 0; j < r.cell_count(); ++j) lacking += r.cells[j].write.thread == NOBODY;
    machine->launch->buffers[i].unwritten =
        (uint)((lacking * r.part + r.element - 1) / r.element);
  }
  EMULATOR_SHOW(machine->launch->block, machine->launch->block_bytes);
  EMULATOR_SHOW(arena, ARENA);
  munmap(arena, ARENA);
  regions.clear();
}

size_t threadgroup_bytes() {
  size_t sum = 0;
  for (size_t i = device_regions; i < regions.size(); ++i) sum += regions[i].bytes;
  return sum;
}

void* threadgroup_array(size_t bytes, size_t element, size_t part, const char* name, uint line) {
  for (size_t i = device_regions; i < regions.size(); ++i)
    if (regions[i].line == line && !strcmp(regions[i].name, name)) return regions[i].data;
  size_t sum = threadgroup_bytes() + bytes;
  if (sum > 32768) stop("threadgroup memory", "%zu bytes with '%s', of 32768", sum, name);
  char* data = arena + arena_used + GAP;
  arena_used += GAP + (bytes + 255) / 256 * 256;
  if (arena_used + GAP > ARENA) stop("threadgroup memory", "more arrays than can be emulated");
  EMULATOR_SHOW(data, bytes);
  static const uint nan = ~0u;  // and -1, and an odd pointer
  for (size_t i = 0; i < bytes; i += sizeof nan)
    copy(data + i, &nan, bytes - i < sizeof nan ? bytes - i : sizeof nan);
  watch({data, bytes, element, part, 2, true, false, name, line, {}});
  return data;
}

static std::string who(const Stamp& s) {
  if (s.thread & SEVERAL) return "several threads";
  if (s.thread & SEVERAL_LANES) return "several threads of one simdgroup";
  std::string text = "thread " + std::to_string(s.thread & NUMBER);
  return s.group == machine->group ? text : text + " of another threadgroup";
}

static bool same_simdgroup(const Stamp& a, const Stamp& b) {
  return (a.thread & NUMBER) / LANES == (b.thread & NUMBER) / LANES;
}

// Does a barrier, or the order of one thread's program, lie between `before` and `now`? Which lane
// serves which element of a matrix is nothing to build on: COLLECTIVE makes another thread of it.
static bool ordered(const Stamp& before, const Stamp& now) {
  if (before.group != now.group) return false;
  if (before.epoch != now.epoch || !((before.thread ^ now.thread) & ~ATOMICALLY)) return true;
  if (before.thread & SEVERAL) return false;
  return same_simdgroup(before, now) && before.simd_epoch != now.simd_epoch;
}

// the reads since the last write that a later write may have to be ordered after, as one stamp
static void add_read(Stamp& reads, const Stamp& now) {
  if (reads.thread == NOBODY || ordered(reads, now)) {
    reads = now;
    return;
  }
  bool close = reads.group == now.group && !(reads.thread & SEVERAL) &&
               same_simdgroup(reads, now) && reads.simd_epoch == now.simd_epoch;
  uint group = reads.group == now.group ? now.group : ANY_GROUP;
  uint atomically = reads.thread & now.thread & ATOMICALLY;
  reads = now;
  reads.group = group;
  reads.thread = (now.thread & NUMBER) | (close ? SEVERAL_LANES : SEVERAL) | atomically;
}

static void touch_cell(Region& region, size_t index, const Stamp& now, bool writes) {
  Cell& cell = region.cells[index];
  const size_t element = index * region.part / region.element;
  if (!writes && cell.write.thread == NOBODY && !region.initialised)
    stop("uninitialised", "%s reads %s[%zu] at %s, where nothing was written before",
         who(now).c_str(), region.name, element, describe(now.where).c_str());
  auto check = [&](const Stamp& before, const char* did) {
    if (before.thread == NOBODY || ordered(before, now)) return;
    if (before.thread & now.thread & ATOMICALLY) return;
    stop("race", "%s %s %s[%zu] at %s, %s %s it at %s, and no barrier orders %s memory between",
         who(before).c_str(), did, region.name, element, describe(before.where).c_str(),
         who(now).c_str(), writes ? "writes" : "reads", describe(now.where).c_str(),
         region.flag == 1 ? "device" : "threadgroup");
  };
  check(cell.write, "wrote");
  if (!writes) return add_read(cell.read, now);
  check(cell.read, "read");
  cell.write = now;
  cell.read.thread = NOBODY;
}

static Region* region_of(const char* place) {
  if (last_region < regions.size() && regions[last_region].has(place))
    return &regions[last_region];
  for (size_t i = 0; i < regions.size(); ++i)
    if (regions[i].has(place)) return &regions[last_region = i];
  return nullptr;
}

[[noreturn]] static void out_of_bounds(const char* place, uint how, uint where) {
  const Region* nearest = nullptr;
  size_t distance = ~(size_t)0;
  for (const Region& r : regions) {
    size_t d = place < r.data ? (size_t)(r.data - place) : (size_t)(place - r.data) - r.bytes;
    if (d < distance) nearest = &r, distance = d;
  }
  const uint thread = machine->current->position.thread_index_in_threadgroup;
  const char* does = how & WRITE ? "writes" : "reads";
  if (!nearest)
    stop("bounds", "thread %u %s what is no array at %s", thread, does, describe(where).c_str());
  const long bytes = place - nearest->data, size = (long)nearest->element;
  stop("bounds", "thread %u %s %s[%ld] at %s, an array of %zu", thread, does, nearest->name,
       bytes < 0 ? (bytes - size + 1) / size : bytes / size, describe(where).c_str(),
       nearest->bytes / nearest->element);
}

void touch(const void* address, size_t bytes, uint how, uint where) {
  if (!machine || !machine->current) return;
  Fiber& self = *machine->current;
  char* place = (char*)address;
  if ((size_t)(place - self.stack) < STACK) return;
  Region* region = region_of(place);
  if (!region) {
    if (place >= code_begin && place < code_end && !(how & WRITE)) return;
    out_of_bounds(place, how, where);
  }
  if (place + bytes > region->data + region->bytes)
    out_of_bounds(region->data + region->bytes, how, where);
  if ((how & WRITE) && !region->is_output)
    stop("input written", "%s[%zu] at %s", region->name,
         (size_t)(place - region->data) / region->element, describe(where).c_str());
  if (!region->cells) return;
  Stamp now;
  now.thread =
      self.position.thread_index_in_threadgroup | (how & (COLLECTIVE | ATOMIC)) * KINDS;
  now.group = machine->group;
  now.epoch = machine->epoch[region->flag];
  now.simd_epoch = self.simdgroup->epoch[region->flag];
  now.where = where;
  const size_t begin = (size_t)(place - region->data), size = region->part;
  for (size_t i = begin / size; i <= (begin + bytes - 1) / size; ++i)
    touch_cell(*region, i, now, how & WRITE);
}

void access(const void* address, size_t bytes, uint how, uint line) {
  touch(address, bytes, how, line);
#if defined(EMULATOR_THREAD_SANITIZER)
  if (how & ATOMIC) return;
  (how & WRITE ? __tsan_write_range : __tsan_read_range)((void*)address, bytes);
#endif
}

}  // namespace emulator
