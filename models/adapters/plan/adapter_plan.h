// Plans an adapter from its file's header, before any factor is read: which pair of tensors applies to which module, at
// which scale. The whole file is checked; one unknown tensor makes it invalid.
//
// Formats, distinguished by the tensors' names:
//   diffusers       transformer.<module>.lora_A.weight, text_encoder.<module>…; alpha in the header or in tensors
//   PEFT            base_model.model.<module>.lora_A.weight; alpha in adapter_config.json, the header or tensors
//   kohya           lora_unet_<original name>, lora_te1_<module>, lora_transformer_<module>, with .alpha
//   LyCORIS         lycoris_<module or original name>, with .alpha
//   ComfyUI         diffusion_model.<original name>, text_encoders.clip_l.transformer.<module>, model.diffusion_model…
//   fal             base_model.model.<original name>
//   XLabs           double_blocks.<i>.processor.qkv_lora1.down.weight
// Each format uses lora_A/lora_B, lora_down/lora_up or lora.down/lora.up; lora_A and lora_B may be followed by PEFT's
// name of the adapter ("lora_A.default.weight"). Embeddings in the file are skipped with a warning.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// delta W = scale · up[first_row …] @ down, for one module.
struct PlannedFactors {
  std::string component;
  const ProductSpec* module = nullptr;  // points into the AdapterNames
  const StoredTensor* down = nullptr;   // [rank, in], points into the file
  const StoredTensor* up = nullptr;     // [rows, rank]; the module uses `module->out` of the rows
  int64_t first_row = 0;                // after the exchange of halves
  bool halves_exchanged = false;        // the second half of all rows of `up` is moved before the first
  double scale = 1;                     // alpha / rank, or alpha / sqrt(rank)
};

struct AdapterPlan {
  std::vector<PlannedFactors> factors;  // by module
  std::vector<std::string> embeddings;  // tensors that are not used
};

// Returns the plan of a file. `adapter_config` is the text of the adapter_config.json next to the file, if there is
// one. Returns errors of AdapterError, each naming the tensor or the module, and errors of reading the file.
absl::StatusOr<AdapterPlan> PlanAdapter(const SafetensorsFile& file, const std::optional<std::string>& adapter_config,
                                        const AdapterNames& names);

}  // namespace tessera::models
