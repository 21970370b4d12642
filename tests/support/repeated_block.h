// RepeatedBlock runs a model's first block as often as requested, for tests that measure the cost of a block.
#pragma once

#include <functional>
#include <vector>

#include "models/families/family.h"

namespace tessera {

class RepeatedBlock final : public models::Transformer {
 public:
  RepeatedBlock(const models::Transformer& model, int blocks) : model_(model), blocks_(blocks) {}

  // Called before each block with its index and what it reads.
  std::function<void(int, const models::BlockState&)> before_block = [](int, const models::BlockState&) {};

  int num_blocks() const override { return blocks_; }
  bool joint_text() const override { return model_.joint_text(); }
  int64_t output_features() const override { return model_.output_features(); }
  models::Positions Place(models::TokenGrid grid, int64_t text, at::Device device) const override {
    return model_.Place(grid, text, device);
  }
  models::Positions PlaceText(int64_t tokens, models::TokenGrid grid, at::Device device) const override {
    return model_.PlaceText(tokens, grid, device);
  }
  models::PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                           const parallel::ForwardContext& context) const override {
    return model_.Read(text, extras, context);
  }
  models::StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                  const parallel::ForwardContext& context) const override {
    return model_.EmbedStep(timesteps, prompt, context);
  }
  at::Tensor Modulate(int index, const models::StepEmbedding& step,
                      const parallel::ForwardContext& context) const override {
    return model_.Modulate(index == blocks_ ? model_.num_blocks() : 0, step, context);
  }
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override {
    return model_.Embed(patches, positions, context);
  }
  void Block(int index, models::BlockState& state, const models::Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    before_block(index, state);
    model_.Block(0, state, conditioning, context);
  }
  at::Tensor Head(const models::BlockState& state, const models::Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    return model_.Head(state, conditioning, context);
  }

 private:
  const models::Transformer& model_;
  const int blocks_;
};

class RepeatedFamily final : public models::Family {
 public:
  RepeatedFamily(models::Family& family, int blocks) : family_(family), transformer_(family.transformer(), blocks) {}

  RepeatedBlock& block() { return transformer_; }
  const models::Transformer& transformer() const override { return transformer_; }
  at::ScalarType dtype() const override { return family_.dtype(); }
  at::Device device() const override { return family_.device(); }
  int64_t weight_bytes() const override { return family_.weight_bytes(); }
  models::LatentGeometry Geometry(int64_t height, int64_t width) const override {
    return family_.Geometry(height, width);
  }
  bool masks_padding() const override { return family_.masks_padding(); }
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest& request,
                                               const parallel::ForwardContext& context) override {
    return family_.Encode(request, context);
  }
  at::Tensor ToPatches(const at::Tensor& latents) const override { return family_.ToPatches(latents); }
  at::Tensor ToPrediction(const at::Tensor& output, const models::LatentGeometry& geometry) const override {
    return family_.ToPrediction(output, geometry);
  }
  absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) override {
    return family_.Decode(latents, context);
  }
  absl::StatusOr<models::LatentPosterior> EncodeImage(const at::Tensor& image,
                                                      const parallel::ForwardContext& context) override {
    return family_.EncodeImage(image, context);
  }

 private:
  models::Family& family_;
  RepeatedBlock transformer_;
};

}  // namespace tessera
