// Weights that wait in the host's memory, for devices with less memory than a model takes: those which are used once a
// job and so need not be on the device while it denoises. Each matrix is copied there for its use. LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::models {

// Which products' weights wait.
enum class Offloaded : uint8_t {
  kNone,
  kModulations,  // those of a transformer's modulations, as IsModulation says
  kAll,          // those of the text encoders too
};

// Whether this tensor of a transformer is the matrix of a modulation, which Transformer::Modulate alone reads, for many
// steps at once: "transformer_blocks.0.norm1.linear.weight". They are a quarter of FLUX.1's weights.
constexpr bool IsModulation(std::string_view tensor) {
  constexpr std::string_view kEnd = ".linear.weight";
  if (!tensor.ends_with(kEnd)) return false;
  tensor.remove_suffix(kEnd.size());
  return tensor.substr(tensor.rfind('.') + 1).starts_with("norm");
}

}  // namespace tessera::models
