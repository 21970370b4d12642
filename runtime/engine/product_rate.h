// How fast a device multiplies matrices, which no run can be faster than.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera::runtime {

// Floating-point operations a second of products [rows, width] · [width, width] in that dtype, where a multiplication
// and an addition are two: of as many products as take a tenth of a second, after one that is not timed. Throws
// c10::Error where the device has no memory for them.
double MeasureProductRate(at::Device device, at::ScalarType dtype, int64_t rows, int64_t width);

}  // namespace tessera::runtime
