// What a model will take of the machine's memory, known before any of it is loaded: from the headers of its weight
// files, of which not one tensor is read. Pure but for those headers; LibTorch-free; everything here is thread-safe.
//
// Counted are the weights as they are served, and what loading takes on top: the largest tensor of the component being
// loaded a second time (it is converted, or put into another order) and 64 MiB of buffers. That is the bound which
// loading keeps. Two things are not exact: tensors that a model ignores (position_ids) count like weights, and a
// product that is packed from several tensors can be larger than the largest of them. What a run takes of a device
// (activations, modulations, images) counts as the request says it, and the cache of prompts as large as it may become;
// what a run and that cache take of main memory is not in the plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/machine_memory.h"
#include "control/placement.h"
#include "models/loading/offload.h"
#include "models/weights/model_folder.h"

namespace tessera::models {

struct LoadRequest {
  control::Dtype dtype = control::Dtype::kFp32;
  bool on_device = false;  // rank 0 computes on a device with memory of its own
  control::ComponentPlacement text_encoders = control::ComponentPlacement::kRank0;
  control::ComponentPlacement autoencoder =
      control::ComponentPlacement::kRank0;  // every other component stays with rank 0
  bool encodes_prompts = true;              // else another rank has the text encoders
  int64_t transformer_parts = 1;            // this rank has one of so many, about equal
  bool stream_blocks = false;               // the transformer's blocks are there one at a time
  bool quantize = false;                    // its weights take a byte each, about
  // Of this rank's part, on a device: parameters of blocks that wait in the host's memory, and those of the buffers
  // which they pass through on the device.
  int64_t waiting_parameters = 0, buffer_parameters = 0;
  Offloaded offload = Offloaded::kNone;  // on a device: what else waits in main memory
  int64_t run_bytes = 0;                 // of the device, beside weights, while an image is made
  int64_t prompt_cache_bytes = 0;        // of a rank that encodes prompts, where it computes
};

enum class MemoryKind { kHost, kDevice };

struct PlannedComponent {
  std::string name;
  control::ComponentRole role = control::ComponentRole::kOther;
  int64_t parameters = 0;                 // elements of all its tensors
  int64_t largest_parameters = 0;         // of its largest tensor
  int64_t block_parameters = 0;           // of its largest block
  int64_t frame_parameters = 0;           // of all that is in none of its blocks
  std::vector<int64_t> offloadable = {};  // elements of what can wait in main memory, by allocation
  int64_t stored_bytes = 0;               // of all its tensors, in its files
  int64_t bytes = 0;                      // as served, of all that stays or is there at a time
  int64_t transient_bytes = 0;            // of them: there only while they are in use
  int64_t offloaded_bytes = 0;            // as served, of what waits in main memory beside them, as long as they
  int64_t waiting_bytes = 0;              // that it takes there
  int64_t largest_bytes = 0;              // of its largest tensor, as served
  MemoryKind memory = MemoryKind::kHost;

  bool is_transient() const { return bytes > 0 && transient_bytes == bytes; }
};

// Bytes of one kind of memory. Numbers too large for 63 bits are the largest that fits.
struct MemoryNeed {
  int64_t resident = 0;  // once everything is loaded, without transient components
  // The most at any time of loading, in whatever order, of using transient components, of which there is one at a time,
  // and of making an image.
  int64_t peak = 0;
};

struct LoadPlan {
  LoadRequest request;
  std::vector<PlannedComponent> components;  // by name
  MemoryNeed host;
  MemoryNeed device;  // zero unless the request is for a device
};

// Plans every component of the folder that has weight files; the others, tokenizers for example, take nothing that
// counts. The errors are those of ModelFolder::Weights.
absl::StatusOr<LoadPlan> PlanLoad(const ModelFolder& folder, const LoadRequest& request);

// `plan`, if it fits into what is available of the device, or if nothing here helps. Else the first of these that fits:
// modulations wait in main memory; the text encoders do too; modulations wait, and the text encoders are read for each
// use.
LoadPlan OffloadedWhereNeeded(const LoadPlan& plan, const base::MachineMemory& host, int64_t device_available);

// OK if the peaks fit into what is available (of the device: if known), to the byte. Else ResourceExhausted, with a
// table of the components, and every least change of --dtype, --text-encoders and --vae under which the same folder
// fits; or, if there is none, how much is needed at least.
absl::Status CheckFits(const LoadPlan& plan, const base::MachineMemory& host, std::optional<int64_t> device_available);

}  // namespace tessera::models
