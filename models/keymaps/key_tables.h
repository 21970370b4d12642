// The tables of the names in single files, one per family and form, as data. key_map.h reads them, and
// models/adapters/plan/adapter_names.h takes the authors' module names of adapters from them.
#pragma once

#include <span>
#include <string_view>

namespace tessera::models {

// How a tensor in a file is made from parameters of the diffusers layout.
enum class KeyOperation {
  kSame,         // the same values under another name
  kConcat,       // several parameters stacked on the output features (rows)
  kSwap,         // the halves of the output features are exchanged
  kConv,         // a matrix [out, in] stored as a kernel [out, in, 1, 1]
  kRotaryPairs,  // rows 2 i and 2 i + 1 of a head are rows i and i + head_dim / 2 of the parameter's head
  kPart,         // one of several equal parts of the parameter's output features (rows)
  kFrame,        // one frame [out, in, height, width] of a kernel [out, in, frames, height, width]
};

// What a row names.
enum class KeyUnit {
  kModule,  // a module: the row holds for its "weight", "bias" and "gamma"
  kTensor,  // one tensor
};

// Placeholders: {} is a number that is the same on both sides, in the same order. A word in braces ({last}, {level}, …)
// stands for texts that the configuration determines (KeyNumber in key_map.h).
struct KeyRow {
  std::string_view file;
  std::string_view parameters;  // separated by spaces
  KeyOperation operation = KeyOperation::kSame;
  KeyUnit unit = KeyUnit::kModule;
  int part = 0,
      parts = 1;  // kPart, kFrame: which of how many parts; kRotaryPairs: 0 has the heads of queries, 1 of keys
};

// The first row that matches a name applies.
struct KeyTable {
  std::span<const KeyRow> rows;
  std::span<const std::string_view> ignored;  // names without effect
};

// Transformers, in the names of their authors.
extern const KeyTable kFluxKeys;    // FLUX.1
extern const KeyTable kFlux2Keys;   // FLUX.2
extern const KeyTable kSd3Keys;     // Stable Diffusion 3 and 3.5; {last} is the last block
extern const KeyTable kZImageKeys;  // Z-Image; {stack} is each of the stacks of layers

// Autoencoders. {level} is a level, counted from the other end in diffusers' decoder.
extern const KeyTable kLatentDiffusionAutoencoderKeys;
extern const KeyTable kWanAutoencoderKeys;  // Qwen-Image's; {residual} and {upsampler} are positions in the decoder

// Text encoders, in the names of llama.cpp.
extern const KeyTable kLlamaCppT5Keys;
extern const KeyTable kLlamaCppQwenKeys;     // Qwen3, and Qwen2.5-VL with the vision tower of its mmproj file
extern const KeyTable kLlamaCppMistralKeys;  // queries and keys are reordered

// A tensor by which ComfyUI marks that a transformer of Qwen-Image treats references as of time zero (zero_cond_t).
inline constexpr std::string_view kZeroConditionMark = "__index_timestep_zero__";

// Names without effect of files that otherwise have diffusers' own names.
extern const std::span<const std::string_view> kIgnoredClipKeys;
extern const std::span<const std::string_view> kIgnoredTextKeys;

}  // namespace tessera::models
