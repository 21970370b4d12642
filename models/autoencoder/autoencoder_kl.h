// Makes the autoencoders of class AutoencoderKL (Stable Diffusion 3, FLUX.1, PixArt and others).
#pragma once

#include <memory>

#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/autoencoder_config.h"

namespace tessera::models {

std::unique_ptr<Autoencoder> MakeAutoencoderKl(const AutoencoderConfig& config, ParamTable& table);

}  // namespace tessera::models
