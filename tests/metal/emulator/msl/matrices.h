// simdgroup_matrix: 8 x 8 numbers, two in each lane of a simdgroup.
#pragma once
#include "collectives.h"

namespace metal {

template <class T, int COLUMNS, int ROWS> struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "the language has matrices of 8 x 8 alone");
  vec<T, 2> elements;
  // undefined until something is stored: all bits set, which is a NaN
  simdgroup_matrix() { __builtin_memset((void*)&elements, 0xff, sizeof elements); }
  explicit simdgroup_matrix(T diagonal) {
    uint row, column;
    emulator::element_of_lane(emulator::lane(), row, column);
    elements = vec<T, 2>(row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0));
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int COLUMNS, int ROWS>
simdgroup_matrix<T, COLUMNS, ROWS> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, COLUMNS, ROWS> filled;
  filled.elements = vec<T, 2>(value);
  return filled;
}

// All lanes must name the same place. How an origin counts in a transposed matrix is open.
template <class U> EMULATOR_SILENT void check_place(
    U* address, ulong stride, vec<ulong, 2> origin, bool transposed, const char* name, uint line) {
  struct Place { const void* address; ulong stride; } mine{address, stride}, first;
  const char* slots = emulator::exchange(&mine, sizeof mine, name, line);
  __builtin_memcpy(&first, slots, sizeof first);
  if (first.address != mine.address || first.stride != mine.stride)
    emulator::fail("lanes", line, "address or stride differs between the lanes of a simdgroup");
  if (transposed && (origin.x || origin.y))
    emulator::fail("lanes", line, "an origin in a transposed matrix: add it to the address");
}
template <class U> EMULATOR_SILENT U* element(
    U* matrix, ulong stride, vec<ulong, 2> origin, bool transposed, int j, uint how, uint line) {
  uint row, column;
  emulator::element_of_lane(emulator::lane(), row, column);
  column += (uint)j;
  U* place = matrix + (transposed ? column * stride + row
                                  : (origin.y + row) * stride + origin.x + column);
  emulator::access(place, sizeof(U), how | emulator::COLLECTIVE, line);
  return place;
}
template <class T, class U> EMULATOR_SILENT void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& matrix, const U* source, ulong stride = 8,
    ulong2 origin = ulong2(0), bool transposed = false, EMULATOR_LINE) {
  static_assert(is_same_v<T, U>, "simdgroup_load: matrix and memory are of different types");
  check_place(source, stride, origin, transposed, "simdgroup_load", line);
  for (int j = 0; j < 2; ++j)
    matrix.elements[j] = *element(source, stride, origin, transposed, j, emulator::READ, line);
}
template <class T, class U> EMULATOR_SILENT void simdgroup_store(
    const simdgroup_matrix<T, 8, 8>& matrix, U* target, ulong stride = 8,
    ulong2 origin = ulong2(0), bool transposed = false, EMULATOR_LINE) {
  static_assert(is_same_v<T, U>, "simdgroup_store: matrix and memory are of different types");
  check_place(target, stride, origin, transposed, "simdgroup_store", line);
  for (int j = 0; j < 2; ++j)
    *element(target, stride, origin, transposed, j, emulator::WRITE, line) = matrix.elements[j];
}

template <class D, class A, class B, class C> void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, EMULATOR_LINE) {
  float left[2] = {(float)a.elements.x, (float)a.elements.y};
  float right[2] = {(float)b.elements.x, (float)b.elements.y};
  float sum[2] = {(float)c.elements.x, (float)c.elements.y};
  emulator::multiply_accumulate(left, right, sum, line);
  d.elements = vec<D, 2>((D)sum[0], (D)sum[1]);
}
template <class D, class A, class B> void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, EMULATOR_LINE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), line);
}

}  // namespace metal
