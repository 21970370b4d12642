// Makes the autoencoder of Qwen-Image, class AutoencoderKLQwenImage: an autoencoder of videos that is used for single
// frames.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/image_codec_config.h"
#include "models/autoencoder/qwen_autoencoder_config.h"

namespace tessera::models {

std::unique_ptr<Autoencoder> MakeQwenAutoencoder(const QwenAutoencoderConfig& config, ParamTable& table);

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<ImageCodecConfig> ReadAutoencoderKlQwenImage(base::ConfigReader& reader);

}  // namespace tessera::models
