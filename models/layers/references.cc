#include "models/layers/references.h"

namespace tessera::models {

void MoveReferencesToImage(int64_t references, BlockState& state) {
  if (references == 0) return;
  const int64_t texts = state.text.size(1) - references;
  state.image = at::cat({state.text.narrow(1, texts, references), state.image}, 1);
  state.text = state.text.narrow(1, 0, texts);
}

void MoveReferencesToText(int64_t references, BlockState& state) {
  if (references == 0) return;
  state.text = at::cat({state.text, state.image.narrow(1, 0, references)}, 1);
  state.image = state.image.narrow(1, references, state.image.size(1) - references);
}

}  // namespace tessera::models
