// What an adapter file says, before one of its factors is read: which two tensors lie beside which module, at which
// scale. The whole file is checked; one tensor that is not understood refuses all of it.
//
// Formats, told by the names of the tensors:
//   diffusers       transformer.<module>.lora_A.weight, text_encoder.<module>…; alpha in the header or in tensors
//   PEFT            base_model.model.<module>.lora_A.weight; alpha in adapter_config.json, the header or tensors
//   kohya           lora_unet_<original name>, lora_te1_<module>, lora_transformer_<module>, with .alpha
//   LyCORIS         lycoris_<module or original name>, with .alpha
//   ComfyUI         diffusion_model.<original name>, text_encoders.clip_l.transformer.<module>, model.diffusion_model…
//   fal             base_model.model.<original name>
//   XLabs           double_blocks.<i>.processor.qkv_lora1.down.weight
// each with lora_A/lora_B, lora_down/lora_up or lora.down/lora.up, and with PEFT's name of the adapter behind lora_A
// and lora_B ("lora_A.default.weight") or without. Embeddings that a file holds besides are left out with a warning.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// delta W = scale · up[first_row …] @ down, of one module.
struct PlannedFactors {
  std::string component;
  const ProductSpec* module = nullptr;  // of the AdapterNames
  const StoredTensor* down = nullptr;   // [rank, in], of the file
  const StoredTensor* up = nullptr;     // [rows, rank]; the module's are `module->out` of them
  int64_t first_row = 0;                // once halves are exchanged
  bool halves_exchanged = false;        // the second half of all rows of `up` comes first
  double scale = 1;                     // alpha / rank, or alpha / sqrt(rank)
};

struct AdapterPlan {
  std::vector<PlannedFactors> factors;  // by module
  std::vector<std::string> embeddings;  // tensors that are left out
};

// What the file says. `adapter_config`: the text of the adapter_config.json beside the file, if there is one.
// Errors: those of AdapterError, each naming the tensor or the module; and those of reading the file.
absl::StatusOr<AdapterPlan> PlanAdapter(const SafetensorsFile& file, const std::optional<std::string>& adapter_config,
                                        const AdapterNames& names);

}  // namespace tessera::models
