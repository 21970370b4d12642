// Defines the dtypes in which a model is served, the roles of its components, and where they are kept. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>

#include "base/fields/enum_names.h"

namespace tessera::control {

// The dtype of weights as they are served.
enum class Dtype { kFp64, kFp32, kBf16 };
constexpr auto NamesOf(Dtype) { return std::array{"fp64", "fp32", "bf16"}; }

// Bytes of one element.
constexpr int64_t ElementBytes(Dtype dtype) { return dtype == Dtype::kFp64 ? 8 : dtype == Dtype::kFp32 ? 4 : 2; }

// The role of a component in a pipeline.
enum class ComponentRole { kOther, kTransformer, kAutoencoder, kTextEncoder };
constexpr auto NamesOf(ComponentRole) { return std::array{"other", "transformer", "autoencoder", "text_encoder"}; }

// Where a component other than the transformer is kept.
enum class ComponentPlacement {
  kRank0,     // on the first rank's device
  kCpu,       // in the first rank's host memory
  kUnloaded,  // read from its files for each use and dropped after it
  kSharded,   // shared out over the devices of all ranks, which use it together
};
constexpr auto NamesOf(ComponentPlacement) { return std::array{"rank0", "cpu", "unload", "sharded"}; }

// The placements that an autoencoder can have.
enum class AutoencoderPlacement { kRank0, kCpu, kUnloaded };
constexpr auto NamesOf(AutoencoderPlacement) { return std::array{"rank0", "cpu", "unload"}; }
constexpr ComponentPlacement PlacementOf(AutoencoderPlacement placement) {
  return static_cast<ComponentPlacement>(placement);
}

// Whether weights that are used once per image are kept in host memory, on devices with memory separate from it.
enum class Offload {
  kAuto,  // if the model would not fit otherwise
  kNever,
  kAlways,
};
constexpr auto NamesOf(Offload) { return std::array{"auto", "never", "always"}; }

}  // namespace tessera::control
