#include "runtime/device/host_memory.h"

#include <ATen/EmptyTensor.h>

#include "kernels/device_runtimes.h"

namespace tessera::runtime {
namespace {

at::Tensor Pinned(const at::Tensor& like, at::Device device) {
  return at::detail::empty_generic(like.sizes(), kernels::DeviceRuntimeOf(device.type()).pinned_memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU), like.scalar_type(), std::nullopt);
}

}  // namespace

at::Tensor ToDevice(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  at::Tensor pinned = Pinned(host, device);
  pinned.copy_(host);
  return pinned.to(device, /*non_blocking=*/true);
}

at::Tensor ToHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor pinned = Pinned(tensor, tensor.device());
  return pinned.copy_(tensor, /*non_blocking=*/true);
}

}  // namespace tessera::runtime
