// What C++ leaves undefined: the compiler calls these where -fsanitize=undefined finds it.
#include "state.h"

namespace {
struct Source {  // the first field of what each of them is given
  const char* file;
  uint32_t line, column;
};
[[noreturn]] void undefined(const Source* source, const char* what) {
  emulator::stop("undefined behaviour", "%s at %s", what, emulator::describe(source->line).c_str());
}
}  // namespace

#define HANDLER(name, what) \
  void __ubsan_handle_##name(Source* source) { undefined(source, what); }
extern "C" {
HANDLER(add_overflow, "an integer sum overflows")
HANDLER(sub_overflow, "an integer difference overflows")
HANDLER(mul_overflow, "an integer product overflows")
HANDLER(negate_overflow, "an integer's negative overflows")
HANDLER(divrem_overflow, "division by zero, or of the lowest integer by -1")
HANDLER(shift_out_of_bounds, "a shift by less than 0 or by the width of the number or more")
HANDLER(out_of_bounds, "an index outside of its array")
HANDLER(type_mismatch_v1, "an address that is not aligned for its type")
HANDLER(missing_return, "a function ends without returning a value")
HANDLER(builtin_unreachable, "a place that is said to be unreachable")
HANDLER(load_invalid_value, "a bool that is neither false nor true")
}
