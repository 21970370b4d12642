#include "models/transformer.h"

namespace tessera {

at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const ForwardContext& context) {
  const Conditioning conditioning = transformer.Condition(input, context);
  BlockState state = transformer.Embed(input, context);
  for (int i = 0; i < transformer.num_blocks(); ++i) transformer.Block(i, state, conditioning, context);
  return transformer.Head(state, conditioning, context);
}

}  // namespace tessera
