// LoadOptions says how a model's weights are loaded, and which of them this rank holds.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include "control/parameters/placement.h"
#include "models/loading/offload.h"
#include "models/loading/param_table.h"

namespace tessera::parallel {
class Communicator;
}

namespace tessera::models {

struct LoadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  control::Placement placement;
  int64_t prompt_cache_bytes = int64_t{256} << 20;
  // The transformer's weights are kept unpacked, are listed in parameters(), and require a gradient unless they are
  // buffers; a caller that trains fewer of them clears that on Param::storage. Not for a thread in c10::InferenceMode,
  // and not with streamed blocks.
  bool for_training = false;
  // The transformer's matrices are held in eight bits (models/loading/eight_bits.h) and require no gradient. Only with
  // for_training.
  bool quantize = false;
  // Which weights wait in the host's memory (models/loading/offload.h) if the device has its own. Not with
  // for_training.
  Offloaded offload = Offloaded::kNone;
  // The memory of the host in which weights wait; null: each component has its own.
  std::shared_ptr<WaitingMemory> waiting_memory = nullptr;
  WeightShare share;            // this rank's part of the transformer
  bool encodes_prompts = true;  // if false, another rank encodes prompts: text encoders' weights are not read, and
                                // Encode may not be called
  // The ranks that share the text encoders out, which then call Encode together with the same requests in the same
  // order; null unless the text encoders are placed so.
  parallel::Communicator* text_ranks = nullptr;
  bool byte_fallback = true;  // see Tokenizer::UseUnknownToken
};

}  // namespace tessera::models
