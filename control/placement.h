// What a model is made of, in which numbers it is served, and where its components live. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>

#include "base/enum_names.h"

namespace tessera::control {

// Of weights as they are served.
enum class Dtype { kFp64, kFp32, kBf16 };
constexpr auto NamesOf(Dtype) { return std::array{"fp64", "fp32", "bf16"}; }

// Of one number.
constexpr int64_t ElementBytes(Dtype dtype) { return dtype == Dtype::kFp64 ? 8 : dtype == Dtype::kFp32 ? 4 : 2; }

// What a component of a pipeline is for.
enum class ComponentRole { kOther, kTransformer, kAutoencoder, kTextEncoder };
constexpr auto NamesOf(ComponentRole) { return std::array{"other", "transformer", "autoencoder", "text_encoder"}; }

// Where a component other than the transformer lives.
enum class ComponentPlacement {
  kRank0,     // on the first rank's device
  kCpu,       // in the first rank's host memory
  kUnloaded,  // read from its files for each use and dropped after it
};
constexpr auto NamesOf(ComponentPlacement) { return std::array{"rank0", "cpu", "unload"}; }

// Whether weights that are used once an image wait in the host's memory, where the device has its own.
enum class Offload {
  kAuto,  // where the model would not fit otherwise
  kNever,
  kAlways,
};
constexpr auto NamesOf(Offload) { return std::array{"auto", "never", "always"}; }

}  // namespace tessera::control
