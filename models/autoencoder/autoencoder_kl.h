// Makes the autoencoders of the classes AutoencoderKL (Stable Diffusion 3, FLUX.1, PixArt and others) and
// AutoencoderKLFlux2.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/autoencoder_config.h"
#include "models/autoencoder/image_codec_config.h"

namespace tessera::models {

std::unique_ptr<Autoencoder> MakeAutoencoderKl(const AutoencoderConfig& config, ParamTable& table);

// The class AutoencoderKLFlux2. Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<ImageCodecConfig> ReadAutoencoderKlFlux2(base::ConfigReader& reader);

}  // namespace tessera::models
