// LoadParameters: which model a worker loads, in which numbers and where; and what it reports of that. Plain values,
// free of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "base/fields.h"
#include "control/device_memory.h"
#include "control/placement.h"

namespace tessera::control {

struct LoadParameters {
  std::string model;  // folder
  Dtype dtype = Dtype::kFp32;
  std::string device = "cpu";  // as ParseDevice takes it (control/device.h)
  int32_t threads = 0;         // 0: all of the machine's
  ComponentPlacement text_encoders = ComponentPlacement::kRank0;
  ComponentPlacement autoencoder = ComponentPlacement::kRank0;
  uint64_t prompt_cache_bytes = uint64_t{256} << 20;  // 0: prompts are encoded every time
  bool stream_blocks = false;                         // the transformer's blocks are read from its files for each use
  Offload offload = Offload::kAuto;
  std::string record;     // a folder for what the blocks compute (control/step_record.h); empty: not kept
  bool training = false;  // the transformer's weights will be trained
  bool quantize = false;  // its matrices are frozen, and held in eight bits; with `training`
  // Of the transformer's blocks, which are frozen, so many wait in the host's memory for their use
  // (control/training/model_training.h); with `training`.
  int32_t blocks_to_swap = 0;
};

inline constexpr base::Text kPath = {.is_path = true};

constexpr auto FieldsOf(const LoadParameters*) {
  using base::Field, base::Integer;
  using L = LoadParameters;
  return std::tuple(Field("model", &L::model, kPath), Field("dtype", &L::dtype), Field("device", &L::device),
                    Field("threads", &L::threads, Integer{0, 1 << 12}), Field("text_encoders", &L::text_encoders),
                    Field("autoencoder", &L::autoencoder),
                    Field("prompt_cache_bytes", &L::prompt_cache_bytes, Integer{0, uint64_t{1} << 40}),
                    Field("stream_blocks", &L::stream_blocks), Field("offload", &L::offload),
                    Field("record", &L::record, kPath), Field("training", &L::training),
                    Field("quantize", &L::quantize), Field("blocks_to_swap", &L::blocks_to_swap, Integer{0, 1 << 16}));
}

// What decides the numbers that come out, besides the worker program: a certificate names it. Empty on the CPU.
struct DeviceIdentity {
  std::string device;  // its model
  std::string driver;
  std::string cudnn;
  std::string nccl;
  std::string communicator =
      "host";  // through which ranks exchange tensors; "host": memory of the host that they share

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
  uint64_t weight_bytes = 0;  // as served
  // Absent where the rank computes in the host's memory, and where the device does not report it.
  std::optional<MemoryBudget> memory_budget;
  std::optional<DeviceMemory> device_memory;  // absent likewise
  // SHA-256 of all bytes of its files, 64 hexadecimal digits; empty where another rank of the group reads the same
  // files, and where the model is trained.
  std::string contents;
};

constexpr auto FieldsOf(const Loaded*) {
  using base::Field;
  using L = Loaded;
  return std::tuple(Field("seconds", &L::seconds), Field("weight_bytes", &L::weight_bytes),
                    Field("memory_budget", &L::memory_budget), Field("device_memory", &L::device_memory),
                    Field("contents", &L::contents));
}

}  // namespace tessera::control
