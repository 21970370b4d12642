// TextEncoderConfig describes a text encoder of any class without its weights. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "base/json/json.h"

namespace tessera::models {

struct T5Config {
  int64_t vocabulary = 0;
  int64_t width = 0;     // d_model
  int64_t head_dim = 0;  // d_kv; heads · head_dim may differ from width
  int64_t heads = 0;
  int64_t hidden = 0;  // d_ff
  int64_t layers = 0;
  int64_t buckets = 32;
  int64_t max_distance = 128;
  double norm_eps = 1e-6;
};

struct ClipConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t positions = 0;   // maximum length of a text, in tokens
  int64_t projection = 0;  // width of the projected pooled output; 0 if it is not projected
  bool quick_gelu = true;  // x · sigmoid(1.702 x), else the exact GELU
  double norm_eps = 1e-5;
  int64_t end_id = 2;  // eos_token_id; 2 is the legacy value that means "the largest id of the text"

  int64_t pooled_width() const { return projection > 0 ? projection : width; }
};

struct BertConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t positions = 0;  // maximum length of a text, in tokens
  int64_t token_types = 0;
  double norm_eps = 1e-12;
};

// A decoder-only language model.
struct DecoderConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;     // hidden_size
  int64_t heads = 0;     // of queries
  int64_t kv_heads = 0;  // of keys and values
  int64_t head_dim = 0;
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t positions = 0;  // maximum length of a text, in tokens
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  bool qk_norm = false;   // whether the heads of queries and keys are normalised
  bool qkv_bias = false;  // whether their products have biases
};

// The vision tower of Qwen2.5-VL (Bai et al., 2025).
struct VisionConfig {
  int64_t width = 0;   // hidden_size
  int64_t heads = 0;   // of width / heads channels each
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t out_width = 0;                  // out_hidden_size
  int64_t channels = 0;                   // of a picture
  int64_t frames = 0;                     // temporal_patch_size: how often a patch holds its picture
  int64_t patch = 0;                      // pixels a side
  int64_t window = 0;                     // units of a window along one side
  std::vector<int64_t> full_layers = {};  // whose attention is over a whole picture; the others' is over windows

  int64_t patch_features() const { return channels * frames * patch * patch; }
};

// Qwen2.5-VL reads pictures as tokens of the text, with positions on the axes (frame, row, column).
struct VisionLanguageConfig {
  DecoderConfig text;
  VisionConfig vision;
  int64_t picture_id = -1;             // image_token_id
  std::vector<int64_t> sections = {};  // mrope_section: how many of a head's frequencies encode each axis
};

// The configurations of the encoders by class. Errors are collected in the reader.
T5Config ParseT5Config(base::ConfigReader& reader);
ClipConfig ParseClipConfig(base::ConfigReader& reader, bool projected);
BertConfig ParseBertConfig(base::ConfigReader& reader);
DecoderConfig ParseQwen3Config(base::ConfigReader& reader);
// The part of Mistral 3 that reads texts, in "text_config".
DecoderConfig ParseMistral3Config(base::ConfigReader& reader);
// The part of the model that reads texts, whether its fields are at the top, as in published files, or in
// "text_config", as transformers 5 writes them.
DecoderConfig ParseQwen25VlConfig(base::ConfigReader& reader);
// The model with its vision tower, in both forms.
VisionLanguageConfig ParseQwen25VlWithVision(base::ConfigReader& reader);

class ParamTable;
class TextEncoder;

// How an encoder reads pictures.
struct PictureReading {
  int64_t picture_id = -1;  // the token that stands for one unit of a picture
  int64_t patch = 0;        // pixels a side
  int64_t frames = 0;       // how often a patch holds its picture
};

// An encoder of any class.
struct TextEncoderConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;         // of the hidden states
  int64_t pooled_width = 0;  // 0 if the encoder has no pooled output
  int64_t layers = 0;
  int64_t positions = std::numeric_limits<int64_t>::max();  // maximum length of a text, in tokens
  bool takes_adapters = false;
  bool takes_left_padding = false;  // whether padding may come before the text
  // Whether a tokenizer's model_max_length is the length of every text, and therefore at most `positions`.
  bool fills_length = false;
  // Makes the encoder and adds its parameters to the table. Their values are loaded afterwards.
  std::function<std::unique_ptr<TextEncoder>(ParamTable&)> make;
  // What an encoder that also reads pictures needs; nothing if it reads texts alone.
  std::optional<PictureReading> pictures = std::nullopt;
};

}  // namespace tessera::models
