// OpenedAutoencoder decodes latents and encodes images on any number of ranks.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/autoencoder/autoencoder.h"
#include "models/loading/weight_loader.h"
#include "models/weights/model_folder.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

// An autoencoder and its weights. `model` is a folder of tests/golden/pipelines; if empty, the autoencoder has the
// shape of published ones (four levels of two layers) and random weights.
struct OpenedAutoencoder {
  OpenedAutoencoder(const std::string& model, at::ScalarType dtype, at::Device device = at::kCPU)
      : table(dtype, device) {
    if (model.empty()) {
      config = {.latent_channels = 4, .widths = {8, 16, 32, 32}, .layers_per_block = 2, .groups = 8};
      autoencoder = std::make_unique<models::Autoencoder>(config, table);
      uint64_t seed = 1;
      for (const models::Param& param : table.params()) {
        const int64_t inputs = param.spec.shape.size() > 1 ? param.Value().numel() / param.spec.shape[0] : 1;
        const at::Tensor value = Random(param.spec.shape, seed++) / std::sqrt(static_cast<double>(inputs));
        param.Value().copy_(param.spec.shape.size() > 1 ? value : 1 + 0.3 * value);
      }
      return;
    }
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open("tests/golden/pipelines/" + model);
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    absl::StatusOr<base::ConfigReader> reader = folder->Config("vae");
    TORCH_CHECK(reader.ok(), std::string(reader.status().message()));
    config = *models::ParseAutoencoderConfig(*reader);
    autoencoder = std::make_unique<models::Autoencoder>(config, table);
    const absl::Status loaded = models::LoadWeights(*folder->Weights("vae"), table, "vae");
    TORCH_CHECK(loaded.ok(), std::string(loaded.message()));
    if (!device.is_cpu()) table.PackForInference();
  }

  at::Tensor Latents(int64_t height, int64_t width) const {
    return Random({2, config.latent_channels, height, width}, 99).to(table.dtype());
  }

  at::Tensor Decode(const at::Tensor& latents, parallel::Communicator& world,
                    std::optional<int64_t> band_bytes = std::nullopt) const {
    const c10::InferenceMode no_gradients;
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    return autoencoder->DecodeInBands(latents, {.attention = attention, .tensor = one, .world = world},
                                      band_bytes.value_or(models::BandBytesOn(latents.device())));
  }

  at::Tensor DecodeSerially(const at::Tensor& latents) const {
    parallel::SingleRank one;
    return Decode(latents, one);
  }

  // Returns the image that rank 0 of `ranks` returns.
  at::Tensor DecodeOn(int ranks, const at::Tensor& latents, std::optional<int64_t> band_bytes = std::nullopt) const {
    at::Tensor image;
    RunRanks(ranks, [&](ThreadRank& rank) {
      const at::Tensor own = Decode(latents, rank.world(), band_bytes);
      if (rank.rank() == 0) image = own;
    });
    return image;
  }

  // An image whose latents have this size.
  at::Tensor Image(int64_t latent_height, int64_t latent_width) const {
    return Random({2, 3, latent_height * config.factor(), latent_width * config.factor()}, 98).to(table.dtype());
  }

  // Returns the posterior's mean and log variance, [2, …].
  at::Tensor Encode(const at::Tensor& image, parallel::Communicator& world,
                    std::optional<int64_t> band_bytes = std::nullopt) const {
    const c10::InferenceMode no_gradients;
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const models::Autoencoder::Posterior posterior =
        autoencoder->EncodeInBands(image, {.attention = attention, .tensor = one, .world = world},
                                   band_bytes.value_or(models::BandBytesOn(image.device())));
    return at::stack({posterior.mean, posterior.log_variance});
  }

  at::Tensor EncodeSerially(const at::Tensor& image) const {
    parallel::SingleRank one;
    return Encode(image, one);
  }

  // Returns what every one of `ranks` ranks returns, [rank, 2, …].
  at::Tensor EncodeOn(int ranks, const at::Tensor& image, std::optional<int64_t> band_bytes = std::nullopt) const {
    std::vector<at::Tensor> encoded(static_cast<size_t>(ranks));
    RunRanks(ranks, [&](ThreadRank& rank) {
      encoded[static_cast<size_t>(rank.rank())] = Encode(image, rank.world(), band_bytes);
    });
    return at::stack(encoded);
  }

  models::AutoencoderConfig config;
  models::ParamTable table;
  std::unique_ptr<models::Autoencoder> autoencoder;
};

inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), actual.sizes(), " and ", expected.sizes());
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

}  // namespace tessera
