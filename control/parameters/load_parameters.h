// LoadParameters holds which model a worker loads, in which dtype, on which device and with which placement; Loaded is
// what the worker reports. Plain values, free of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "base/fields/fields.h"
#include "control/host/device_memory.h"
#include "control/parameters/placement.h"

namespace tessera::control {

// How a model is kept and computed on its devices. A field is an option of the command line, with its help, a key of a
// group in the server's configuration, and a part of every request to load a model.
struct Placement {
  int32_t threads = 0;  // on the CPU, of all ranks together; 0: all of the machine's processors
  ComponentPlacement text_encoders = ComponentPlacement::kRank0;
  AutoencoderPlacement autoencoder = AutoencoderPlacement::kRank0;
  bool stream_blocks = false;  // the transformer's blocks are read from its files for each use
  Offload offload = Offload::kAuto;

  bool operator==(const Placement&) const = default;
};

inline constexpr int32_t kMaxThreads = 1024;

constexpr auto FieldsOf(const Placement*) {
  using base::Field;
  using P = Placement;
  return std::tuple(
      Field("threads", &P::threads, base::Integer{0, kMaxThreads}, "CPU threads of all ranks together; 0: all"),
      Field("text_encoders", &P::text_encoders,
            "Where the text encoders are: on the first rank's device, in main memory, read for each use, or shared out "
            "over all ranks"),
      Field("autoencoder", &P::autoencoder, "Where the autoencoder is, with the first three of these values"),
      Field("stream_blocks", &P::stream_blocks,
            "Read each block of the transformer from its files for every use: for models that do not fit"),
      Field("offload", &P::offload,
            "Whether weights that are used once an image wait in main memory: for GPUs with less memory than the model "
            "takes"));
}

struct LoadParameters {
  std::string model;  // folder
  Dtype dtype = Dtype::kFp32;
  std::string device = "cpu";  // as for ParseDevice (control/host/device.h)
  Placement placement;
  uint64_t prompt_cache_bytes = uint64_t{256} << 20;  // 0: prompts are encoded every time
  std::string record;     // folder for records of the blocks' outputs (control/model/step_record.h); empty: no record
  bool training = false;  // the transformer's weights will be trained
  bool quantize = false;  // the transformer's matrices are frozen and stored in 8 bits; requires `training`
  // Number of the transformer's frozen blocks that are kept in host memory and copied to the device for each use
  // (control/training/model_training.h); requires `training`.
  int32_t blocks_to_swap = 0;
};

inline constexpr base::Text kPath = {.is_path = true};

constexpr auto FieldsOf(const LoadParameters*) {
  using base::Field, base::Integer;
  using L = LoadParameters;
  return std::tuple(Field("model", &L::model, kPath), Field("dtype", &L::dtype), Field("device", &L::device),
                    base::Inline(&L::placement),
                    Field("prompt_cache_bytes", &L::prompt_cache_bytes, Integer{0, uint64_t{1} << 40}),
                    Field("record", &L::record, kPath), Field("training", &L::training),
                    Field("quantize", &L::quantize), Field("blocks_to_swap", &L::blocks_to_swap, Integer{0, 1 << 16}));
}

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
  // SHA-256 of all bytes of the model's files, 64 hexadecimal digits. Empty if another rank of the group reads the same
  // files, or if the model is loaded for training.
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
