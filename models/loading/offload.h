// Defines which weights wait in the host's memory when a device has less memory than a model takes: weights that are
// used once per job and need not be on the device during denoising. The matrix of a modulation is copied to the device
// for its product; a text encoder or an autoencoder is copied for each use, of an encoder block by block.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::models {

// The weights that wait.
enum class Offloaded : uint8_t {
  kNone,
  kModulations,  // the modulations of a transformer (IsModulation)
  kAll,          // the modulations, the text encoders and the autoencoder
};

// Whether this tensor of a transformer is the matrix of a modulation, for example
// "transformer_blocks.0.norm1.linear.weight" or, in Qwen-Image, "transformer_blocks.0.img_mod.1.weight". Only
// Transformer::Modulate reads these, for many steps at once. They are a quarter of FLUX.1's weights and a third of
// Qwen-Image's.
constexpr bool IsModulation(std::string_view tensor) {
  if (tensor.ends_with("_mod.1.weight")) return true;
  constexpr std::string_view kEnd = ".linear.weight";
  if (!tensor.ends_with(kEnd)) return false;
  tensor.remove_suffix(kEnd.size());
  return tensor.substr(tensor.rfind('.') + 1).starts_with("norm");
}

}  // namespace tessera::models
