// A trained low-rank adapter as kohya's sd-scripts write it, which most tools for FLUX.1 and SD3 load.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "models/adapters/plan/adapter_names.h"
#include "runtime/training/exports/adapter_file.h"

namespace tessera::runtime {

// Writes lora_unet_<module>.lora_down.weight, .lora_up.weight and .alpha under the names that the model's authors gave
// the modules, with every "." replaced by "_".
//
// Several modules of diffusers may be one of the authors', their outputs one after another: queries, keys and values.
// Its rank is then the sum of theirs: down holds their factors a above one another, up their factors b as blocks on the
// diagonal, and zeros for a part that was not trained, so that the product is exactly theirs. Where the authors' rows
// are (shift, scale) and diffusers' (scale, shift), the halves of up are exchanged.
//
// The header has ss_network_module, ss_network_dim, ss_network_alpha, ss_base_model_version, modelspec.architecture,
// the trigger phrase as modelspec.trigger_phrase, and what WritePeftFile says of the adapter's origin. InvalidArgument,
// naming it, for a family without such names, a module that has none, or factors of another shape than the module's;
// else as WritePeftFile.
absl::Status WriteKohyaFile(const std::string& path, const AdapterExport& adapter, const models::AdapterNames& names);

}  // namespace tessera::runtime
