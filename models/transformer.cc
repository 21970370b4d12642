#include "models/transformer.h"

#include <algorithm>

namespace tessera::models {

at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const parallel::ForwardContext& context, std::span<const int> skipped_blocks) {
  const Conditioning conditioning = transformer.Condition(input, context);
  BlockState state = transformer.Embed(input, context);
  for (int i = 0; i < transformer.num_blocks(); ++i) {
    if (std::ranges::find(skipped_blocks, i) != skipped_blocks.end()) continue;
    transformer.Block(i, state, conditioning, context);
  }
  return transformer.Head(state, conditioning, context);
}

}  // namespace tessera::models
