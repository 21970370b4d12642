// Exports a trained low-rank adapter under the module names of the model's authors, in the formats of kohya's
// sd-scripts and of ComfyUI, which most tools load.
//
// Several modules of diffusers may be one module of the authors with concatenated outputs: queries, keys and values.
// Its rank is then the sum of their ranks: `down` stacks their factors a, `up` has their factors b as blocks on the
// diagonal, and a part that was not trained is zero, so that the product is exactly theirs. If the authors' rows are
// ordered (shift, scale) and diffusers' (scale, shift), the halves of `up` are exchanged.
//
// Both functions return InvalidArgument, naming it, for a family without such names, a module without such a name, or
// factors whose shape is not the module's; otherwise the errors of WritePeftFile.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "models/adapters/plan/adapter_names.h"
#include "runtime/training/exports/adapter_file.h"

namespace tessera::runtime {

// Writes lora_unet_<module>.lora_down.weight, .lora_up.weight and .alpha, with every "." of the module's name replaced
// by "_".
//
// The header has ss_network_module, ss_network_dim, ss_network_alpha, ss_base_model_version, modelspec.architecture,
// the trigger phrase as modelspec.trigger_phrase, and the adapter's provenance as in WritePeftFile.
absl::Status WriteKohyaFile(const std::string& path, const AdapterExport& adapter, const models::AdapterNames& names);

// Writes diffusion_model.<module>.lora_A.weight and .lora_B.weight, where the module's name is that of the parameter in
// ComfyUI's checkpoints. The scale is multiplied into the second factor, because some readers of this form refuse
// alpha. The header has the adapter's provenance alone.
absl::Status WriteComfyFile(const std::string& path, const AdapterExport& adapter, const models::AdapterNames& names);

}  // namespace tessera::runtime
