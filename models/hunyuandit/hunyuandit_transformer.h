// HunyuanTransformer implements HunyuanDiT (Li et al., 2024): self-attention with rotary positions, cross-attention
// over two texts, and long skips from the first half of the blocks to the second.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/hunyuandit/hunyuandit_config.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/layers/patch_embed.h"
#include "models/transformer.h"

namespace tessera::models {

// The text is BERT's states including padding [b, text_len, cross_attention_dim].
class HunyuanTransformer final : public Transformer {
 public:
  // Indices of the extras.
  enum Extra {
    kT5,        // T5's states including padding [b, text_len_t5, cross_attention_dim_t5]
    kBertMask,  // [b, text_len], 1 for tokens and 0 for padding
    kT5Mask,    // [b, text_len_t5]
    kSizes,     // [b, 6]: original height and width, height and width, crop top and left; only with style_and_size
  };

  HunyuanTransformer(const HunyuanConfig& config, ParamTable& table);
  ~HunyuanTransformer() override;

  int num_blocks() const override { return static_cast<int>(config_.layers); }
  std::vector<parallel::LongSkip> long_skips() const override;
  int64_t output_features() const override;
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
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

  // Attention of the mean of T5's rows over all rows including padding: [b, t, width] → [b, pooled width].
  at::Tensor PoolText(const at::Tensor& t5, const parallel::ForwardContext& context) const;

 private:
  struct Norm;
  struct SelfAttention;
  struct CrossAttention;
  struct BlockLayers;

  at::Tensor SinusoidOf(const at::Tensor& values) const;

  HunyuanConfig config_;
  at::ScalarType dtype_;
  PatchEmbed patch_embed_;
  EmbeddingMlp t5_embedder_, timestep_embedder_, extra_embedder_;
  at::Tensor text_padding_;    // [text_len + text_len_t5, cross_attention_dim], replaces padding rows
  at::Tensor pool_positions_;  // [text_len_t5 + 1, width of T5]
  Linear pool_q_, pool_kv_, pool_out_;
  at::Tensor styles_;  // [1, D], or undefined
  std::vector<BlockLayers> blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
