#include "models/text_encoders/text_encoder_config.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

template <class Config>
absl::StatusOr<TextEncoderConfig> Wrap(absl::StatusOr<Config> config) {
  if (!config.ok()) return config.status();
  return TextEncoderConfig{.config = *std::move(config)};
}

}  // namespace

int64_t TextEncoderConfig::vocabulary() const {
  return std::visit([](const auto& c) { return c.vocabulary; }, config);
}

int64_t TextEncoderConfig::width() const {
  return std::visit([](const auto& c) { return c.width; }, config);
}

int64_t TextEncoderConfig::layers() const {
  return std::visit([](const auto& c) { return c.layers; }, config);
}

int64_t TextEncoderConfig::pooled_width() const {
  const auto* clip = std::get_if<ClipConfig>(&config);
  return clip != nullptr ? clip->pooled_width() : 0;
}

int64_t TextEncoderConfig::positions() const {
  if (const auto* clip = std::get_if<ClipConfig>(&config)) return clip->positions;
  if (const auto* bert = std::get_if<BertConfig>(&config)) return bert->positions;
  return std::numeric_limits<int64_t>::max();
}

absl::StatusOr<TextEncoderConfig> ParseTextEncoderConfig(const std::string& class_name, ConfigReader& reader) {
  if (class_name == "T5EncoderModel") return Wrap(ParseT5Config(reader));
  if (class_name == "CLIPTextModel") return Wrap(ParseClipConfig(reader, /*projected=*/false));
  if (class_name == "CLIPTextModelWithProjection") return Wrap(ParseClipConfig(reader, /*projected=*/true));
  if (class_name == "BertModel") return Wrap(ParseBertConfig(reader));
  return absl::InvalidArgumentError(
      absl::StrCat(reader.name(), ": text encoders of class ", Quote(class_name),
                   " are not known; known are T5EncoderModel, CLIPTextModel, CLIPTextModelWithProjection, BertModel"));
}

}  // namespace tessera
