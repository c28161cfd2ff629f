// The language as a kernel meets it; address spaces are the semantic check's concern and vanish.
#pragma once
#include "atomics.h"
#include "mathematics.h"
#include "matrices.h"

typedef metal::half float16_t;
typedef metal::bfloat bfloat16_t;
using namespace metal;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define METAL_FUNC inline __attribute__((always_inline))

#define device
#define constant
#define threadgroup
#define thread
#define kernel
