// Copies between host and device for which neither waits: through memory of the host that the device reads and writes
// by itself.
#pragma once

#include <ATen/ATen.h>

namespace tessera::runtime {

// The values of a tensor of the host, on `device`, in the order of its current stream.
at::Tensor ToDevice(const at::Tensor& host, at::Device device);

// The values of a tensor, in memory of the host; they are there once a mark behind this call is reached.
at::Tensor ToHost(const at::Tensor& tensor);

}  // namespace tessera::runtime
