// PositionTables caches the position tables of the most recently used image sizes, so that they are computed once per
// size instead of once per step.
#pragma once

#include <list>

#include "models/transformer.h"

namespace tessera::runtime {

// Used by one thread.
class PositionTables {
 public:
  // `transformer` outlives it.
  PositionTables(const models::Transformer& transformer, at::Device device)
      : transformer_(transformer), device_(device) {}

  // Returns the positions of all tokens of such an image, next to `text` tokens of joint text. The result stays valid
  // after the table is evicted.
  models::Positions Of(models::TokenGrid grid, int64_t text);

 private:
  static constexpr size_t kSizes = 4;

  const models::Transformer& transformer_;
  const at::Device device_;
  struct Entry {
    models::TokenGrid grid;
    int64_t text = 0;
    models::Positions positions;
  };
  std::list<Entry> kept_;  // most recently used first
};

}  // namespace tessera::runtime
