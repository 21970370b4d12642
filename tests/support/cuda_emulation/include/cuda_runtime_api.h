// In the place of CUDA's header of that name: what kernels and the code that launches them use of it.
#pragma once

#include <math.h>

#include "tests/support/cuda_emulation/cuda_emulation.h"

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
