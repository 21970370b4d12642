#include "runtime/device/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <optional>

#include "kernels/device_runtimes.h"

namespace tessera::runtime {
namespace {

// Returns nothing if no more memory can be pinned; copies then go through pageable memory, and the host waits for them.
std::optional<at::Tensor> Pinned(const at::Tensor& like, at::Device device) {
  try {
    return at::detail::empty_generic(like.sizes(), kernels::DeviceRuntimeOf(device.type()).pinned_memory(),
                                     c10::DispatchKeySet(c10::DispatchKey::CPU), like.scalar_type(), std::nullopt);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

at::Tensor ToDevice(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  std::optional<at::Tensor> pinned = Pinned(host, device);
  if (!pinned) return host.to(device);
  pinned->copy_(host);
  return pinned->to(device, /*non_blocking=*/true);
}

at::Tensor ToHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  std::optional<at::Tensor> pinned = Pinned(tensor, tensor.device());
  return pinned ? pinned->copy_(tensor, /*non_blocking=*/true) : tensor.cpu();
}

}  // namespace tessera::runtime
