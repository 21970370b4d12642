// The configuration of a text encoder of any class, by the name that model_index.json has for it. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "models/text_encoders/bert_config.h"
#include "models/text_encoders/clip_config.h"
#include "models/text_encoders/t5_config.h"

namespace tessera {

struct TextEncoderConfig {
  std::variant<T5Config, ClipConfig, BertConfig> config;

  int64_t vocabulary() const;
  int64_t width() const;         // of the hidden states
  int64_t pooled_width() const;  // 0: it has no pooled output
  int64_t layers() const;
  int64_t positions() const;  // the longest text in tokens; the largest int64_t where there is no bound
};

// InvalidArgument: a class that is none of T5EncoderModel, CLIPTextModel, CLIPTextModelWithProjection, BertModel, and
// what the class's own parser says.
absl::StatusOr<TextEncoderConfig> ParseTextEncoderConfig(const std::string& class_name, ConfigReader& reader);

}  // namespace tessera
