// ImageCodecConfig describes an image codec of any class without its weights. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tessera::control {
struct ModelCost;
}

namespace tessera::models {

class ImageCodec;
class ParamTable;

struct ImageCodecConfig {
  int64_t latent_channels = 0;
  int64_t factor = 1;  // pixels per latent along one side
  // Makes the codec and adds its parameters to the table. Their values are loaded afterwards.
  std::function<std::unique_ptr<ImageCodec>(ParamTable&)> make;
  // Fills in what decoding costs.
  std::function<void(control::ModelCost&)> describe_decoding;
};

}  // namespace tessera::models
