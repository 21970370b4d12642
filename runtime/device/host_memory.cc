#include "runtime/device/host_memory.h"

namespace tessera::runtime {
namespace {

at::Tensor Pinned(const at::Tensor& like) {
  return at::empty(like.sizes(), at::TensorOptions(like.scalar_type()).device(at::kCPU).pinned_memory(true));
}

}  // namespace

at::Tensor ToDevice(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  at::Tensor pinned = Pinned(host);
  pinned.copy_(host);
  return pinned.to(device, /*non_blocking=*/true);
}

at::Tensor ToHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor pinned = Pinned(tensor);
  return pinned.copy_(tensor, /*non_blocking=*/true);
}

}  // namespace tessera::runtime
