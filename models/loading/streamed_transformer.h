// StreamedTransformer reads its blocks from the model's files one at a time, each for one pass, so that models larger
// than memory can run. Its results equal those of a transformer kept in memory, bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/loading/component.h"
#include "models/transformer.h"

namespace tessera::models {

class StreamedTransformer final : public Transformer {
 public:
  // Returns a transformer that holds block `index`. Throws if it cannot be read.
  using ReadBlock = std::function<std::unique_ptr<Transformer>(int index)>;

  // `frame` outlives this object. Its model must be loaded before the first call and holds everything except the
  // blocks.
  StreamedTransformer(const Component<Transformer>& frame, ReadBlock read_block)
      : frame_(frame), read_block_(std::move(read_block)) {}

  int num_blocks() const override { return frame_.model().num_blocks(); }
  bool joint_text() const override { return frame_.model().joint_text(); }
  std::vector<parallel::LongSkip> long_skips() const override { return frame_.model().long_skips(); }
  int64_t output_features() const override { return frame_.model().output_features(); }
  bool serves_threads() const override { return false; }
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override {
    return frame_.model().Place(grid, text, device);
  }
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override {
    return frame_.model().PlaceText(tokens, grid, device);
  }
  Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const override {
    return frame_.model().PlaceReferences(grids, device);
  }
  PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                   const parallel::ForwardContext& context) const override {
    return frame_.model().Read(text, extras, context);
  }
  StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                          const parallel::ForwardContext& context) const override {
    return frame_.model().EmbedStep(timesteps, prompt, context);
  }
  at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const override {
    return (index == num_blocks() ? frame_.model() : WithBlock(index)).Modulate(index, step, context);
  }
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override {
    return frame_.model().Embed(patches, positions, context);
  }
  void Block(int index, BlockState& state, const Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    WithBlock(index).Block(index, state, conditioning, context);
    block_.reset();
  }
  at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    return frame_.model().Head(state, conditioning, context);
  }

 private:
  // Modulate and Block of the same block read it once.
  const Transformer& WithBlock(int index) const {
    if (block_ == nullptr || index != index_) {
      block_.reset();
      block_ = read_block_(index);
      index_ = index;
    }
    return *block_;
  }

  const Component<Transformer>& frame_;
  const ReadBlock read_block_;
  mutable std::unique_ptr<Transformer> block_;  // block `index_`, kept from Modulate to Block
  mutable int index_ = 0;
};

}  // namespace tessera::models
