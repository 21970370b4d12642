// A function of each number, on a GPU, times another number where there is one: of rows that may lie apart, as parts of
// a wider product do.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

enum class Activation { kGeluTanh, kGelu, kSilu, kSigmoid };

struct ActivationArguments {
  Number number = Number::kFloat;
  Activation activation = Activation::kGeluTanh;
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows x;
  ConstRows gate;     // without data: none
  void* y = nullptr;  // dense
};

// cudaErrorInvalidValue: rows are longer than a grid is. Without rows nothing is launched.
cudaError_t LaunchActivation(const ActivationArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
