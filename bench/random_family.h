// RandomFamily is a transformer with random weights, without text encoder or autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"
#include "models/token_grid.h"

namespace tessera {

template <typename Model, typename Config>
class RandomFamily final : public models::Family {
 public:
  // `channels` per latent, and `patch` latents per token on each side.
  RandomFamily(const Config& config, int64_t channels, int64_t patch, at::ScalarType dtype, at::Device device,
               const models::WeightShare& share = {})
      : table_(dtype, device, share),
        transformer_(config, table_),
        channels_(channels),
        patch_(patch),
        weight_bytes_(table_.bytes()) {
    for (const models::Param& param : table_.params()) param.Value().normal_(0, 0.02);
  }

  void PackForInference() { table_.PackForInference(); }

  const models::Transformer& transformer() const override { return transformer_; }
  at::ScalarType dtype() const override { return table_.dtype(); }
  at::Device device() const override { return table_.device(); }
  int64_t weight_bytes() const override { return weight_bytes_; }
  // In latents.
  models::LatentGeometry Geometry(int64_t height, int64_t width) const override {
    return {.channels = channels_, .height = height, .width = width, .grid = {height / patch_, width / patch_}};
  }
  bool masks_padding() const override { return true; }
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("there is no text encoder");
  }
  at::Tensor ToPatches(const at::Tensor& latents) const override { return models::Patchify(latents, patch_); }
  at::Tensor ToPrediction(const at::Tensor& output, const models::LatentGeometry& geometry) const override {
    return models::Unpatchify(output, geometry.grid, patch_).narrow(1, 0, channels_);
  }
  absl::StatusOr<at::Tensor> Decode(const at::Tensor&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("there is no autoencoder");
  }
  absl::StatusOr<models::LatentPosterior> EncodeImage(const at::Tensor&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("there is no autoencoder");
  }

 private:
  models::ParamTable table_;
  Model transformer_;
  const int64_t channels_, patch_;
  const int64_t weight_bytes_;  // before packing
};

}  // namespace tessera
