// What compilers call, from a kernel built with -fsanitize=thread,undefined and linked to this
// instead of the sanitizers' libraries: before every load and store, and where C++ leaves undefined
// what happens.
#include "state.h"

using emulator::READ;
using emulator::WRITE;
using emulator::touch;

#define HERE emulator::offset_of(__builtin_return_address(0))
#define HOOKS(BYTES)                                                                           \
  void __tsan_read##BYTES(void* place) { touch(place, BYTES, READ, HERE); }                    \
  void __tsan_write##BYTES(void* place) { touch(place, BYTES, WRITE, HERE); }                  \
  void __tsan_unaligned_read##BYTES(void* place) { touch(place, BYTES, READ, HERE); }          \
  void __tsan_unaligned_write##BYTES(void* place) { touch(place, BYTES, WRITE, HERE); }        \
  void __tsan_read_write##BYTES(void* place) {                                                 \
    touch(place, BYTES, READ, HERE);                                                           \
    touch(place, BYTES, WRITE, HERE);                                                          \
  }                                                                                            \
  void __tsan_unaligned_read_write##BYTES(void* place) {                                       \
    touch(place, BYTES, READ, HERE);                                                           \
    touch(place, BYTES, WRITE, HERE);                                                          \
  }
extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* place, size_t bytes) { touch(place, bytes, READ, HERE); }
void __tsan_write_range(void* place, size_t bytes) { touch(place, bytes, WRITE, HERE); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  touch(from, bytes, READ, HERE);
  touch(to, bytes, WRITE, HERE);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  touch(from, bytes, READ, HERE);
  touch(to, bytes, WRITE, HERE);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  touch(to, bytes, WRITE, HERE);
  return memset(to, value, bytes);
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}

struct Source {  // the first field of what each of the following is given
  const char* file;
  uint line, column;
};
[[noreturn]] static void undefined(const Source* source, const char* what) {
  const bool own = source->file && !strcmp(source->file, "kernel.metal");
  emulator::fail("undefined behaviour", own ? source->line : 0, what);
}
#define HANDLER(name, what) \
  void __ubsan_handle_##name(Source* source) { undefined(source, what); }
extern "C" {
HANDLER(add_overflow, "an integer sum overflows")
HANDLER(sub_overflow, "an integer difference overflows")
HANDLER(mul_overflow, "an integer product overflows")
HANDLER(negate_overflow, "an integer's negative overflows")
HANDLER(divrem_overflow, "division by 0, or of the lowest integer by -1")
HANDLER(shift_out_of_bounds, "a shift by less than 0 or by too much")
HANDLER(out_of_bounds, "an index outside of its array")
HANDLER(missing_return, "a function ends without a value")
HANDLER(builtin_unreachable, "what is said to be unreachable is reached")
HANDLER(load_invalid_value, "a bool that is neither false nor true")

struct Mismatch {
  Source source;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(Mismatch* data, size_t address) {
  const bool aligned = !(address & ((size_t(1) << data->log_alignment) - 1));
  undefined(&data->source, aligned ? "an address outside of its array"
                                   : "an address that is not aligned for its type");
}
}
