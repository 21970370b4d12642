// QwenImageTransformer implements Qwen-Image (Qwen Team, 2025): double-stream blocks with separate weights for text and
// image and one joint attention; rotary positions over three axes, centred on the image, with the text after it on the
// diagonal.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/qwen_image/qwen_image_config.h"
#include "models/transformer.h"

namespace tessera::models {

// There are no extras. The reference masks the padding of a batch's shorter texts in the attention, so here a text has
// no padding.
class QwenImageTransformer final : public Transformer {
 public:
  QwenImageTransformer(const QwenImageConfig& config, ParamTable& table);
  ~QwenImageTransformer() override;

  int num_blocks() const override { return static_cast<int>(config_.layers); }
  bool joint_text() const override { return true; }
  int64_t output_features() const override { return config_.channels; }
  // Throws c10::Error for an image or a text beyond QwenImageConfig::kPositions.
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override;
  Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const override;
  PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                   const parallel::ForwardContext& context) const override;
  StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                          const parallel::ForwardContext& context) const override;
  at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const override;
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override;
  void Block(int index, BlockState& state, const Conditioning& conditioning,
             const parallel::ForwardContext& context) const override;
  at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override;

 private:
  struct Stream;
  struct JointBlock;

  Positions PlaceGrid(TokenGrid grid, int64_t frame, at::Device device) const;
  // Positions with these coordinates of each token, [tokens] each, in fp64.
  Positions PlaceAt(const at::Tensor& frames, const at::Tensor& rows, const at::Tensor& columns,
                    at::Device device) const;

  QwenImageConfig config_;
  at::ScalarType dtype_;
  Linear image_in_;
  at::Tensor text_norm_;  // [text width]
  Linear text_in_;
  EmbeddingMlp timestep_embedder_;
  std::vector<JointBlock> blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
