// Measures how fast a device multiplies matrices, which is an upper bound for any run.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera::runtime {

// Returns the floating-point operations per second for products [rows, width] · [width, width] in that dtype, counting
// a multiplication and an addition as two. Times as many products as take a tenth of a second, after one that is not
// timed. Throws c10::Error if the device has too little memory for them.
double MeasureProductRate(at::Device device, at::ScalarType dtype, int64_t rows, int64_t width);

}  // namespace tessera::runtime
