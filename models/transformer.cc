#include "models/transformer.h"

#include <algorithm>
#include <array>

namespace tessera::models {

Positions Positions::Of(parallel::TokenSpan span) const {
  const auto rows = [span](const at::Tensor& table) {
    return table.defined() ? table.narrow(0, span.begin, span.count()) : table;
  };
  return {.embedded = rows(embedded), .cos = rows(cos), .sin = rows(sin)};
}

Positions Join(std::span<const Positions> parts) {
  if (parts.size() == 1) return parts.front();
  const auto join = [parts](at::Tensor Positions::*table) {
    std::vector<at::Tensor> tables;
    for (const Positions& part : parts) {
      if ((part.*table).defined()) tables.push_back(part.*table);
    }
    return tables.empty() ? at::Tensor() : at::cat(tables);
  };
  return {.embedded = join(&Positions::embedded), .cos = join(&Positions::cos), .sin = join(&Positions::sin)};
}

Positions PlaceJointText(const Transformer& transformer, int64_t text_tokens, TokenGrid grid,
                         std::span<const TokenGrid> references, at::Device device) {
  // The text is next to all pictures.
  for (const TokenGrid& reference : references) {
    grid.height = std::max(grid.height, reference.height);
    grid.width = std::max(grid.width, reference.width);
  }
  const Positions text = transformer.PlaceText(text_tokens, grid, device);
  return references.empty() ? text : Join(std::array{text, transformer.PlaceReferences(references, device)});
}

int64_t JointTokens(const Transformer& transformer, const at::Tensor& text) {
  return transformer.joint_text() && text.defined() ? text.size(1) : 0;
}

int64_t TokensOf(std::span<const TokenGrid> grids) {
  int64_t tokens = 0;
  for (const TokenGrid& grid : grids) tokens += grid.count();
  return tokens;
}

at::Tensor MaskedTextBias(const at::Tensor& mask, at::ScalarType dtype) { return (1 - mask.to(dtype)) * -10000.0; }

ForwardPass::ForwardPass(const Transformer& transformer, const TransformerInput& input,
                         const parallel::ForwardContext& context)
    : transformer_(transformer),
      input_(input),
      context_(context),
      prompt_(transformer.Read(input.text, input.extras, context)),
      positions_(
          transformer
              .Place(input.grid, JointTokens(transformer, prompt_.text) + input.absent_text, input.patches.device())
              .Of(input.span)),
      step_(transformer.EmbedStep(input.timestep, prompt_.vector, context)),
      conditioning_{} {
  if (input.text_mask.defined()) {
    conditioning_.text_bias = MaskedTextBias(input.text_mask, input.patches.scalar_type());
  }
  std::vector<Positions> rows;
  if (transformer.joint_text()) {
    rows.push_back(
        PlaceJointText(transformer, prompt_.text.size(1), input.grid, input.reference_grids, input.patches.device()));
    const int64_t tokens = prompt_.text.size(1);
    conditioning_.references = TokensOf(input.reference_grids);
    conditioning_.has_references = conditioning_.references > 0;
    conditioning_.attended_references = {.begin = tokens, .end = tokens + conditioning_.references};
  }
  rows.push_back(positions_);
  const Positions joined = Join(rows);
  conditioning_.cos = joined.cos;
  conditioning_.sin = joined.sin;
}

Conditioning ForwardPass::ConditioningOf(int index) const {
  Conditioning conditioning = conditioning_;
  conditioning.modulation = transformer_.Modulate(index, step_, context_);
  return conditioning;
}

BlockState ForwardPass::Begin() const {
  std::vector<at::Tensor> text = {prompt_.text};
  for (const at::Tensor& reference : input_.references) text.push_back(transformer_.Embed(reference, {}, context_));
  return {.image = transformer_.Embed(input_.patches, positions_.embedded, context_),
          .text = text.size() == 1 ? text.front() : at::cat(text, 1),
          .skips = {}};
}

at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const parallel::ForwardContext& context, std::span<const int> skipped_blocks) {
  const ForwardPass pass(transformer, input, context);
  BlockState state = pass.Begin();
  for (int i = 0; i < transformer.num_blocks(); ++i) {
    if (std::ranges::find(skipped_blocks, i) != skipped_blocks.end()) continue;
    transformer.Block(i, state, pass.ConditioningOf(i), context);
  }
  return transformer.Head(state, pass.ConditioningOf(transformer.num_blocks()), context);
}

}  // namespace tessera::models
