// A transformer whose blocks are read from the model's files one at a time, each for one use: for models that do not
// fit in memory. It computes what the one that is kept computes, bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "models/loading/component.h"
#include "models/transformer.h"

namespace tessera::models {

class StreamedTransformer final : public Transformer {
 public:
  // A transformer that holds block `index`. Throws where it cannot be read.
  using ReadBlock = std::function<std::unique_ptr<Transformer>(int index)>;

  // `frame` outlives this; its model, there before the first call, holds everything but blocks.
  StreamedTransformer(const Component<Transformer>& frame, ReadBlock read_block)
      : frame_(frame), read_block_(std::move(read_block)) {}

  int num_blocks() const override { return frame_.model().num_blocks(); }
  bool joint_text() const override { return frame_.model().joint_text(); }
  std::vector<parallel::LongSkip> long_skips() const override { return frame_.model().long_skips(); }
  Conditioning Condition(const TransformerInput& input, const parallel::ForwardContext& context) const override {
    return frame_.model().Condition(input, context);
  }
  BlockState Embed(const TransformerInput& input, const parallel::ForwardContext& context) const override {
    return frame_.model().Embed(input, context);
  }
  void Block(int index, BlockState& state, const Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    read_block_(index)->Block(index, state, conditioning, context);
  }
  at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    return frame_.model().Head(state, conditioning, context);
  }

 private:
  const Component<Transformer>& frame_;
  const ReadBlock read_block_;
};

}  // namespace tessera::models
