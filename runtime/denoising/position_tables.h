// PositionTables caches the position tables of the most recently used image sizes, so that they are computed once per
// size instead of once per step.
#pragma once

#include <list>
#include <utility>

#include "models/transformer.h"

namespace tessera::runtime {

// Used by one thread.
class PositionTables {
 public:
  // `transformer` outlives it.
  PositionTables(const models::Transformer& transformer, at::Device device)
      : transformer_(transformer), device_(device) {}

  // Returns the positions of all tokens of such an image. The result stays valid after the table is evicted.
  models::Positions Of(models::TokenGrid grid);

 private:
  static constexpr size_t kSizes = 4;

  const models::Transformer& transformer_;
  const at::Device device_;
  std::list<std::pair<models::TokenGrid, models::Positions>> kept_;  // most recently used first
};

}  // namespace tessera::runtime
