// Loaded is what a worker reports of the model that it has loaded, and DeviceIdentity of the device. Plain values, free
// of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "base/fields/fields.h"
#include "control/host/device_memory.h"

namespace tessera::control {

// Identifies the hardware and libraries that, together with the worker program, decide the exact output; certificates
// contain it. Empty on the CPU.
struct DeviceIdentity {
  std::string device;  // the device's model
  std::string driver;
  std::string cudnn;
  std::string nccl;
  std::string communicator = "host";  // how ranks exchange tensors; "host": through host memory that they share

  bool operator==(const DeviceIdentity&) const = default;
};

constexpr auto FieldsOf(const DeviceIdentity*) {
  using base::Field;
  using I = DeviceIdentity;
  return std::tuple(Field("device", &I::device), Field("driver", &I::driver), Field("cudnn", &I::cudnn),
                    Field("nccl", &I::nccl), Field("communicator", &I::communicator));
}

struct Loaded {
  double seconds = 0;
  uint64_t weight_bytes = 0;  // in the served dtype
  // Absent if the rank computes in host memory or the device does not report it.
  std::optional<MemoryBudget> memory_budget;
  std::optional<DeviceMemory> device_memory;  // absent in the same cases
};

constexpr auto FieldsOf(const Loaded*) {
  using base::Field;
  using L = Loaded;
  return std::tuple(Field("seconds", &L::seconds), Field("weight_bytes", &L::weight_bytes),
                    Field("memory_budget", &L::memory_budget), Field("device_memory", &L::device_memory));
}

struct ModelDigest {
  // SHA-256 of all bytes of the model's files, 64 hexadecimal digits. Empty if another rank of the group reads the same
  // files, or if the model is loaded for training.
  std::string contents;
};

constexpr auto FieldsOf(const ModelDigest*) { return std::tuple(base::Field("contents", &ModelDigest::contents)); }

}  // namespace tessera::control
