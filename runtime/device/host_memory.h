// Copies between host and device without waiting on either side, through host memory that the device can access
// directly. If no more of it can be had, the host waits for the copies.
#pragma once

#include <ATen/ATen.h>

namespace tessera::runtime {

// Returns the values of a host tensor on `device`, in the order of its current stream.
at::Tensor ToDevice(const at::Tensor& host, at::Device device);

// Returns the values of a tensor in host memory. They are valid once a mark created after this call has been reached.
at::Tensor ToHost(const at::Tensor& tensor);

}  // namespace tessera::runtime
