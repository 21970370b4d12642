// BroughtTransformer wraps a transformer and brings the weights of each part for the calls that compute with them
// (WeightResidency). Its callers need not know where the weights are: the ordinary pipeline can run a model that is
// being trained.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/loading/weight_residency.h"
#include "models/transformer.h"

namespace tessera::models {

class BroughtTransformer final : public Transformer {
 public:
  // `model` outlives this object. Until KeepWeightsIn is called, its weights count as resident.
  explicit BroughtTransformer(const Transformer& model) : model_(model) {}

  void KeepWeightsIn(std::shared_ptr<WeightResidency> residency) { residency_ = std::move(residency); }
  WeightResidency* residency() const { return residency_.get(); }

  int num_blocks() const override { return model_.num_blocks(); }
  bool joint_text() const override { return model_.joint_text(); }
  std::vector<parallel::LongSkip> long_skips() const override { return model_.long_skips(); }
  int64_t output_features() const override { return model_.output_features(); }
  bool serves_threads() const override { return false; }
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    Positions positions = model_.Place(grid, text, device);
    // The table may be one of the weights, which are released after this call.
    if (residency_ != nullptr && positions.embedded.defined()) positions.embedded = positions.embedded.clone();
    return positions;
  }
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.PlaceText(tokens, grid, device);
  }
  Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.PlaceReferences(grids, device);
  }
  PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                   const parallel::ForwardContext& context) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.Read(text, extras, context);
  }
  StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                          const parallel::ForwardContext& context) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.EmbedStep(timesteps, prompt, context);
  }
  at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);  // the weights that blocks share
    const bool needs_block = index != num_blocks() && residency_ != nullptr && residency_->holds_modulations();
    const BroughtPart own(residency_.get(), needs_block ? index : WeightResidency::kFrame);
    return model_.Modulate(index, step, context);
  }
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.Embed(patches, positions, context);
  }
  void Block(int index, BlockState& state, const Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    const BroughtPart own(residency_.get(), index);
    model_.Block(index, state, conditioning, context);
  }
  at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    const BroughtPart frame(residency_.get(), WeightResidency::kFrame);
    return model_.Head(state, conditioning, context);
  }

 private:
  const Transformer& model_;
  std::shared_ptr<WeightResidency> residency_;
};

}  // namespace tessera::models
