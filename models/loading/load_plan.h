// LoadPlan predicts how much of the machine's memory a model will take, before it is loaded, from the headers of its
// weight files. No tensor is read. Pure except for reading those headers; LibTorch-free; everything here is
// thread-safe.
//
// The plan counts the weights as they are served, and what loading needs on top: a second copy of the largest tensor of
// the component being loaded (it is converted or reordered) and 64 MiB of buffers. Loading keeps to that bound. Two
// figures are not exact: tensors that a model ignores (position_ids) count like weights, and a product that is packed
// from several tensors can be larger than the largest of them. The device memory of a run (activations, modulations,
// images) counts as the request states it, and the prompt cache counts at its maximum size. The main memory that a run
// and that cache take is not in the plan.
//
// Of a text encoder that is shared out over ranks, each loads its rows only. While the encoder runs, it also has the
// tensors outside the blocks, one block, and the message that brings it or them. One that is streamed from its files
// has only those and one block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/machine/machine_memory.h"
#include "control/model/component_role.h"
#include "control/parameters/placement.h"
#include "models/loading/offload.h"
#include "models/weights/model_folder.h"

namespace tessera::models {

struct LoadRequest {
  control::Dtype dtype = control::Dtype::kFp32;
  bool on_device = false;         // rank 0 computes on a device that has its own memory
  control::Placement placement;   // the components that it does not name stay with rank 0
  bool encodes_prompts = true;    // otherwise another rank has the text encoders
  int64_t ranks = 1;              // share the text encoders out if these are placed so
  int64_t transformer_parts = 1;  // number of about equal parts; this rank has one of them
  bool quantize = false;          // the transformer's weights take about one byte each
  // The components that are read for each use are in memory together, and no weight of the transformer is offloaded.
  bool for_training = false;
  // On a device, of this rank's part: the parameters of blocks whose weights wait in the host's memory, and the
  // parameters that the device's buffers for those blocks hold.
  int64_t waiting_parameters = 0, buffer_parameters = 0;
  Offloaded offload = Offloaded::kNone;  // on a device: other weights offloaded to main memory
  // On a device that serves, of this rank's part: the bytes of blocks whose weights wait in main memory, and of the
  // device's buffers for those blocks.
  int64_t waiting_block_bytes = 0, block_buffer_bytes = 0;
  int64_t run_bytes = 0;           // of device memory that generating an image needs in addition to weights
  int64_t prompt_cache_bytes = 0;  // of a rank that encodes prompts, in the memory where it computes
};

enum class MemoryKind { kHost, kDevice };

// Bytes of the weights that stay packed as they are stored (models/weights/quantization.h), whatever the dtype.
struct PackedBytes {
  int64_t all = 0, block = 0, frame = 0, rows = 0;  // as the parameters of PlannedComponent
  int64_t offloadable = 0, largest = 0;             // of those that can wait in main memory, and of the largest of them
};

struct PlannedComponent {
  std::string name;
  control::ComponentRole role = control::ComponentRole::kOther;
  PackedBytes packed;                     // of its packed tensors; the parameters that follow are of all others
  int64_t parameters = 0;                 // elements of all its tensors
  int64_t largest_parameters = 0;         // of its largest tensor
  int64_t block_parameters = 0;           // of its largest block
  int64_t frame_parameters = 0;           // of all tensors outside its blocks
  int64_t row_parameters = 0;             // elements of the rows of its tensors that one of the request's ranks has
  std::vector<int64_t> offloadable = {};  // elements of the tensors that can wait in main memory, by allocation
  int64_t stored_bytes = 0;               // of all its tensors, in its files
  int64_t bytes = 0;                      // as served; of everything that is in memory at one time
  int64_t transient_bytes = 0;            // the part of `bytes` that is in memory only during use
  int64_t offloaded_bytes = 0;            // of main memory that the waiting tensors take
  int64_t waiting_bytes = 0;              // of main memory that the waiting tensors take
  int64_t largest_bytes = 0;              // of its largest tensor, as served
  bool is_parked = false;                 // all of it waits in main memory, and `bytes` are on the device during use
  MemoryKind memory = MemoryKind::kHost;

  // Whether it is in no memory while it is not used.
  bool is_transient() const { return bytes > 0 && transient_bytes == bytes && !is_parked; }
};

// Bytes of one kind of memory. A number that does not fit into 63 bits is clamped to the largest that does.
struct MemoryNeed {
  int64_t resident = 0;  // after everything is loaded, without transient components
  // The maximum at any time: while loading (in any order), while a transient component is in use (one at a time), and
  // while generating an image.
  int64_t peak = 0;
};

struct LoadPlan {
  LoadRequest request;
  std::vector<PlannedComponent> components;  // by name
  MemoryNeed host;
  MemoryNeed device;  // zero unless the request is for a device
};

// Plans every component of the folder that has weight files; the others, such as tokenizers, take a negligible amount.
// Returns the errors of ModelFolder::Weights.
absl::StatusOr<LoadPlan> PlanLoad(const ModelFolder& folder, const LoadRequest& request);

// Returns INVALID_ARGUMENT, naming the options that work, if the placement asks for products in fp8 and the transformer
// would have no weight in e4m3.
absl::Status CheckProducts(const ModelFolder& folder, const control::Placement& placement);

// The weights that wait in main memory, of the blocks by their bytes.
struct WaitingWeights {
  Offloaded offload = Offloaded::kNone;
  int64_t block_bytes = 0, buffer_bytes = 0;
};

// Returns the plan for the same folder in which these weights wait. If main memory is too small for text encoders that
// wait, they are read for each use, whole or else a layer at a time, provided that this is enough.
LoadPlan WithWaiting(const LoadPlan& plan, const WaitingWeights& waiting, const base::MachineMemory& host);

// Returns OK if the peaks fit into the available memory, to the byte (device memory only if it is known). Otherwise
// returns ResourceExhausted with a table of the components and every minimal change of --dtype, --text-encoders and
// --autoencoder under which the same folder fits; if there is none, the message says how much memory is needed at
// least.
absl::Status CheckFits(const LoadPlan& plan, const base::MachineMemory& host, std::optional<int64_t> device_available);

}  // namespace tessera::models
