// One fiber per GPU thread, all on one thread of the CPU, so that every schedule can be repeated.
//
// A fiber begins through <ucontext.h>; from then on setjmp and longjmp change over, which call no
// operating system. The sanitizers want to be told and to see swapcontext. Assumed: glibc's
// ucontext, on any processor.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(EMULATOR_ADDRESS_SANITIZER)
extern "C" void __sanitizer_start_switch_fiber(void** saved, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
#endif
#if defined(EMULATOR_THREAD_SANITIZER)
extern "C" void* __tsan_get_current_fiber();
extern "C" void* __tsan_create_fiber(unsigned flags);
extern "C" void __tsan_destroy_fiber(void* fiber);
extern "C" void __tsan_switch_to_fiber(void* fiber, unsigned flags);
#endif

namespace emulator {

constexpr size_t STACK = 1 << 18, GUARD = 1 << 12, POISONED = 1 << 14;

// memory that is taken up where it is touched, and not before
inline char* reserve(size_t bytes) {
  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) perror("emulator"), abort();
  return (char*)got;
}

struct Stacks {  // those of a threadgroup
  size_t count;
  char* memory;
  explicit Stacks(size_t count) : count(count), memory(reserve(count * (STACK + GUARD))) {
    for (size_t i = 0; i < count; ++i) mprotect(of(i) - GUARD, GUARD, PROT_NONE);
  }
  ~Stacks() { munmap(memory, count * (STACK + GUARD)); }
  char* of(size_t i) const { return memory + i * (STACK + GUARD) + GUARD; }
};

class Context {
 public:
  // the context of the caller
  Context() {
#if defined(EMULATOR_THREAD_SANITIZER)
    sanitizer = __tsan_get_current_fiber();
#endif
  }
  // one that begins in `entry`, on a stack of its own
  void begin(char* new_stack, void (*entry)()) {
    stack = new_stack;
    started = false;
#if defined(EMULATOR_THREAD_SANITIZER)
    if (!owned) sanitizer = __tsan_create_fiber(0);
    owned = true;
#endif
#if !defined(EMULATOR_ADDRESS_SANITIZER) && !defined(EMULATOR_THREAD_SANITIZER)
    memset(stack + STACK - POISONED, 0xff, POISONED);  // what is read before it is set is a NaN
#endif
    getcontext(&whole);
    whole.uc_stack.ss_sp = stack;
    whole.uc_stack.ss_size = STACK;
    whole.uc_link = nullptr;
    makecontext(&whole, entry, 0);
  }
  ~Context() {
#if defined(EMULATOR_THREAD_SANITIZER)
    if (owned) __tsan_destroy_fiber(sanitizer);
#endif
  }
  Context(const Context&) = delete;
  void operator=(const Context&) = delete;

  // leave this context for another, until something changes back
  void change_to(Context& other, bool for_good = false) {
#if defined(EMULATOR_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, other.stack, other.stack_size);
    swapcontext(&whole, &other.whole);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#elif defined(EMULATOR_THREAD_SANITIZER)
    __tsan_switch_to_fiber(other.sanitizer, 1);  // 1: orders nothing
    swapcontext(&whole, &other.whole);
#else
    if (_setjmp(place)) return;
    if (other.started) _longjmp(other.place, 1);
    other.started = true;
    setcontext(&other.whole);
#endif
    (void)for_good;
  }
  // the first thing that a new fiber does; `origin` is where it was changed from
  void arrived(Context& origin) {
#if defined(EMULATOR_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &origin.bottom, &origin.stack_size);
    origin.stack = (char*)origin.bottom;
#endif
    (void)origin;
  }

 private:
  char* stack = nullptr;
  bool started = true;
  ucontext_t whole;
  jmp_buf place;
#if defined(EMULATOR_ADDRESS_SANITIZER)
  void* fake = nullptr;
  const void* bottom = nullptr;
  size_t stack_size = STACK;
#endif
#if defined(EMULATOR_THREAD_SANITIZER)
  void* sanitizer;
  bool owned = false;
#endif
};

}  // namespace emulator
