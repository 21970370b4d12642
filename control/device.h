// A device as users, configurations and messages name it. LibTorch-free.
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
  int32_t index = -1;  // on cuda; below 0: the first, or for each of several ranks its own
  std::string name;    // in place of an index: what its maker calls it, "GPU-…" or "MIG-…"

  auto operator<=>(const Device&) const = default;
};

// How messages name what ParseDevice takes.
inline constexpr char kDeviceNames[] =
    "cpu, cuda, cuda:N, and what nvidia-smi -L calls a GPU (GPU-…) or a part of one (MIG-…)";

// cpu, cuda, cuda:N (N counts within CUDA_VISIBLE_DEVICES, where that is set), GPU-UUID, MIG-UUID or
// MIG-GPU-UUID/INSTANCE/INSTANCE; nothing for another text.
std::optional<Device> ParseDevice(absl::string_view name);
std::string DeviceText(const Device& device);

// Whether images that share a pass come out as they do alone. Only where all of the operators are our own: a library
// chooses among its kernels by the shapes of their inputs. Elsewhere each image has passes of its own.
constexpr bool ImagesSharePasses(DeviceKind kind) { return kind == DeviceKind::kCpu; }

// A device that another host lends: "node-a/cuda:1".
struct PlacedDevice {
  std::string node;    // 1 to 63 of a-z 0-9 . -, a letter or digit first; empty: this host
  std::string device;  // as ParseDevice takes it, or "cpu:1", the second place on the CPU of a node
};
PlacedDevice SplitDevice(absl::string_view name);  // of any text
// What the worker of such a device is told: "cuda:1" for "node-a/cuda:1", and "cpu" for "node-a/cpu:1".
std::string DeviceOnItsHost(absl::string_view name);
bool IsNodeName(absl::string_view name);
// cpu:N or cuda:N, as nodes offer and lend them.
bool IsNodeDevice(absl::string_view name);

// Whether the text names one device of this kind.
bool IsDevice(absl::string_view name, DeviceKind kind);

}  // namespace tessera::control
