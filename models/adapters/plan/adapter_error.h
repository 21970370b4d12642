// Why an adapter file is refused. Nothing of a refused file is used.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/enum_names.h"

namespace tessera::models {

enum class AdapterFault {
  kUnknownModule,         // nothing of that name in the model
  kUnknownTensor,         // a tensor that no format has there
  kWrongShape,            // of a factor, or factors that do not fit each other
  kMissingPair,           // one factor without the other, alpha without factors
  kMissingTensor,         // the configuration promises a tensor that is not there
  kNotFinite,             // NaN or infinity in a factor
  kBadAlpha,              // not one finite number
  kBadMetadata,           // the configuration is not what PEFT writes
  kMetadataDisagrees,     // the configuration says otherwise than the tensors
  kMissingConfig,         // a PEFT folder without adapter_config.json
  kMixedFormats,          // the names of two formats in one file
  kNotAnAdapter,          // weights, or anything else
  kUnsupportedKind,       // an adapter that is not plain low-rank: DoRA, LoKr, LoHa, biases, norms, convolutions
  kUnsupportedComponent,  // a part for a component that takes none, such as T5
  kWrongFamily,           // made for models of another family
  kEmpty,                 // a file without tensors
  kBrokenFile,            // no safetensors file, or a truncated one
};
constexpr auto NamesOf(AdapterFault) {
  return std::array{"unknown_module", "unknown_tensor", "wrong_shape",      "missing_pair",          "missing_tensor",
                    "not_finite",     "bad_alpha",      "bad_metadata",     "metadata_disagrees",    "missing_config",
                    "mixed_formats",  "not_an_adapter", "unsupported_kind", "unsupported_component", "wrong_family",
                    "empty",          "broken_file"};
}

// INVALID_ARGUMENT with that message, which carries the fault's name.
absl::Status AdapterError(AdapterFault fault, const std::string& message);

// The fault that AdapterError gave an error; nothing for other errors.
std::optional<AdapterFault> FaultOf(const absl::Status& status);

}  // namespace tessera::models
