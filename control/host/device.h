// Device is a compute device as users, configurations and messages name it. LibTorch-free.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::control {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = -1;  // of a CUDA device; negative: the first one, or for several ranks one each
  std::string name;    // used instead of an index: NVIDIA's name, "GPU-…" or "MIG-…"

  auto operator<=>(const Device&) const = default;
};

// The device names that ParseDevice accepts, for messages.
inline constexpr char kDeviceNames[] =
    "cpu, cuda, cuda:N, and what nvidia-smi -L calls a GPU (GPU-…) or a part of one (MIG-…)";

// Accepts cpu, cuda, cuda:N (N counts within CUDA_VISIBLE_DEVICES, if that is set), GPU-UUID, MIG-UUID and
// MIG-GPU-UUID/INSTANCE/INSTANCE; returns nullopt for other text.
std::optional<Device> ParseDevice(absl::string_view name);
std::string DeviceText(const Device& device);

// Whether images that share a forward pass are bit-equal to images computed alone. That requires that all operators are
// ours, because a library chooses its kernels by the shapes of their inputs. On other devices each image has its own
// passes.
constexpr bool ImagesSharePasses(DeviceKind kind) { return kind == DeviceKind::kCpu; }

// A device that may be on another host: "node-a/cuda:1".
struct PlacedDevice {
  std::string node;    // 1 to 63 of a-z 0-9 . -, beginning with a letter or digit; empty: this host
  std::string device;  // as for ParseDevice, or "cpu:1", the second CPU slot of a node
};
PlacedDevice SplitDevice(absl::string_view name);  // accepts any text
// The device's name on its host, which its worker is started with: "cuda:1" for "node-a/cuda:1", and "cpu" for
// "node-a/cpu:1".
std::string DeviceOnItsHost(absl::string_view name);
bool IsNodeName(absl::string_view name);
// Whether the name is cpu:N or cuda:N, the names under which nodes offer devices.
bool IsNodeDevice(absl::string_view name);

// Whether the name denotes one device of this kind.
bool IsDevice(absl::string_view name, DeviceKind kind);

}  // namespace tessera::control
