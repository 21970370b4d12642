// OpenedAutoencoder decodes latents and encodes images on any number of ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/image_codec_table.h"
#include "models/loading/weight_loader.h"
#include "models/weights/model_folder.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

// Configurations with the shapes of published autoencoders (four levels of two layers) but few channels.
struct SmallAutoencoder {
  std::string_view name, class_name, config;
};
inline constexpr SmallAutoencoder kSmallAutoencoders[] = {
    {"published_shape", "AutoencoderKL",
     R"({"latent_channels": 4, "block_out_channels": [8, 16, 32, 32], "layers_per_block": 2, "norm_num_groups": 8})"},
    {"flux2", "AutoencoderKLFlux2",
     R"({"latent_channels": 4, "block_out_channels": [8, 16, 32, 32], "decoder_block_out_channels": [16, 16, 32, 32],
         "layers_per_block": 2, "norm_num_groups": 8})"},
    {"qwen_image", "AutoencoderKLQwenImage",
     R"({"z_dim": 4, "base_dim": 8, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
         "temperal_downsample": [false, true, true], "latents_mean": [0.5, -1, 0.25, 2],
         "latents_std": [2, 0.5, 1.5, 3]})"},
};

// An autoencoder and its weights. `model` names one of kSmallAutoencoders, which has random weights, or a pipeline of
// the golden sets.
struct OpenedAutoencoder {
  OpenedAutoencoder(const std::string& model, at::ScalarType dtype, at::Device device = at::kCPU)
      : table(dtype, device) {
    const auto* small = std::ranges::find(kSmallAutoencoders, model, &SmallAutoencoder::name);
    if (small != std::end(kSmallAutoencoders)) {
      absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(small->config, "config.json");
      TORCH_CHECK(reader.ok(), std::string(reader.status().message()));
      Make(*models::FindImageCodec(small->class_name), *reader);
      DrawWeights();
      if (!device.is_cpu()) table.PackForInference();
      return;
    }
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(model));
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    absl::StatusOr<base::ConfigReader> reader = folder->Config("vae");
    TORCH_CHECK(reader.ok(), std::string(reader.status().message()));
    Make(**models::FindImageCodec(*folder, "vae"), *reader);
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
    return Random({2, 3, latent_height * config.factor, latent_width * config.factor}, 98).to(table.dtype());
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

  models::ImageCodecConfig config;
  models::ParamTable table;
  std::unique_ptr<models::Autoencoder> autoencoder;

 private:
  void Make(const models::ImageCodecEntry& entry, base::ConfigReader& reader) {
    absl::StatusOr<models::ImageCodecConfig> read = entry.read(reader);
    TORCH_CHECK(read.ok(), std::string(read.status().message()));
    config = *std::move(read);
    autoencoder.reset(dynamic_cast<models::Autoencoder*>(config.make(table).release()));
  }

  void DrawWeights() {
    uint64_t seed = 1;
    for (const models::Param& param : table.params()) {
      const int64_t inputs = param.Value().numel() / param.shape[0];
      const at::Tensor value = Random(param.shape, seed++) / std::sqrt(static_cast<double>(inputs));
      const bool is_bias = param.spec.name.ends_with("bias");
      param.Value().copy_(inputs > 1 ? value : is_bias ? 0.3 * value : (1 + 0.3 * value).abs());
    }
  }
};

inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), actual.sizes(), " and ", expected.sizes());
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

}  // namespace tessera
