// In the place of CUDA's header of that name: what kernels and the code that launches them use of it.
#pragma once

#include <math.h>

#include "tests/support/cuda_emulation/cuda_emulation.h"

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
