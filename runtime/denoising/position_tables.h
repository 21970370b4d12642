// The position tables of the sizes that were last denoised: made once a size, not once a step.
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

  // Of all tokens of such an image. What it returns stays good when the table is given up.
  models::Positions Of(models::TokenGrid grid);

 private:
  static constexpr size_t kSizes = 4;

  const models::Transformer& transformer_;
  const at::Device device_;
  std::list<std::pair<models::TokenGrid, models::Positions>> kept_;  // the last used first
};

}  // namespace tessera::runtime
