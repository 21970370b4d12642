// AdapterFault says why an adapter file was refused. Nothing of a refused file is used.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/fields/enum_names.h"

namespace tessera::models {

enum class AdapterFault {
  kUnknownModule,         // no module of the model has that name
  kUnknownTensor,         // a tensor that no format defines
  kWrongShape,            // of a factor, or factors that do not fit each other
  kMissingPair,           // one factor without the other, alpha without factors
  kMissingTensor,         // the configuration names a tensor that the file lacks
  kNotFinite,             // NaN or infinity in a factor
  kBadAlpha,              // not one finite number
  kBadMetadata,           // the configuration is not what PEFT writes
  kMetadataDisagrees,     // the configuration contradicts the tensors
  kMissingConfig,         // a PEFT folder without adapter_config.json
  kMixedFormats,          // the names of two formats in one file
  kNotAnAdapter,          // full weights, or anything else
  kUnsupportedKind,       // an adapter that is not plain low-rank: DoRA, LoKr, LoHa, biases, norms, convolutions
  kUnsupportedComponent,  // a part for a component that takes no adapters, such as T5
  kWrongFamily,           // made for models of another family
  kEmpty,                 // a file without tensors
  kBrokenFile,            // not a safetensors file, or a truncated one
};
constexpr auto NamesOf(AdapterFault) {
  return std::array{"unknown_module", "unknown_tensor", "wrong_shape",      "missing_pair",          "missing_tensor",
                    "not_finite",     "bad_alpha",      "bad_metadata",     "metadata_disagrees",    "missing_config",
                    "mixed_formats",  "not_an_adapter", "unsupported_kind", "unsupported_component", "wrong_family",
                    "empty",          "broken_file"};
}

// Returns INVALID_ARGUMENT with that message and the fault's name as payload.
absl::Status AdapterError(AdapterFault fault, const std::string& message);

// Returns the fault of an error from AdapterError; nothing for other errors.
std::optional<AdapterFault> FaultOf(const absl::Status& status);

}  // namespace tessera::models
