// Defines which weights wait in the host's memory when a device has less memory than a model takes: weights that are
// used once per job and need not be on the device during denoising. Each matrix is copied to the device for its use.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::models {

// The products whose weights wait.
enum class Offloaded : uint8_t {
  kNone,
  kModulations,  // the modulations of a transformer (IsModulation)
  kAll,          // the modulations and the text encoders' products
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
