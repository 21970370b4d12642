// The tokens of reference pictures have the image's weights in blocks with separate weights for text and image, but
// they are the last rows of the text outside of these (Transformer::PlaceReferences).
#pragma once

#include <cstdint>

#include "models/transformer.h"

namespace tessera::models {

// Moves the last `references` rows of the text [b, t, D] to the front of the image [b, n, D], where they directly
// follow the text in the order of attention.
void MoveReferencesToImage(int64_t references, BlockState& state);

// The inverse.
void MoveReferencesToText(int64_t references, BlockState& state);

}  // namespace tessera::models
