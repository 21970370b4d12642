// Applies an activation function to each number on a GPU and optionally multiplies by a gate. The rows may be apart in
// memory, as parts of a wider product are.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

enum class Activation { kGeluTanh, kGelu, kSilu, kSigmoid };

struct ActivationArguments {
  Number number = Number::kFloat;
  Activation activation = Activation::kGeluTanh;
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows x;
  ConstRows gate;     // no gate if its data is null
  void* y = nullptr;  // dense
};

// Returns cudaErrorInvalidValue if the rows are too long for a grid. Launches nothing if there are no rows.
cudaError_t LaunchActivation(const ActivationArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
