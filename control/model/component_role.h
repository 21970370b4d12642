// ComponentRole is what a component does in a pipeline. LibTorch-free.
#pragma once

#include <array>

#include "base/fields/enum_names.h"

namespace tessera::control {

// The role of a component in a pipeline.
enum class ComponentRole { kOther, kTransformer, kAutoencoder, kTextEncoder };
constexpr auto NamesOf(ComponentRole) { return std::array{"other", "transformer", "autoencoder", "text_encoder"}; }

}  // namespace tessera::control
