// TextEncoderConfig is the configuration of a text encoder of any class, by its name in model_index.json.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "base/json.h"

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

struct TextEncoderConfig {
  std::variant<T5Config, ClipConfig, BertConfig> config;

  int64_t vocabulary() const;
  int64_t width() const;         // of the hidden states
  int64_t pooled_width() const;  // 0 if the encoder has no pooled output
  int64_t layers() const;
  int64_t positions() const;  // maximum length of a text, in tokens; the largest int64_t if there is no bound
};

// Reads the encoder's config.json. Returns InvalidArgument for a class other than T5EncoderModel, CLIPTextModel,
// CLIPTextModelWithProjection and BertModel, and for an invalid field, with its name, its value and the valid values.
absl::StatusOr<TextEncoderConfig> ParseTextEncoderConfig(const std::string& class_name, base::ConfigReader& reader);

}  // namespace tessera::models
