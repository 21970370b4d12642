#include "models/loading/weight_sizes.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "control/parameters/weight_storage.h"
#include "models/loading/eight_bits.h"
#include "models/loading/offload.h"
#include "models/loading/weight_loader.h"

namespace tessera::models {
namespace {

control::WeightSize SizeOf(const Param& param, const ParamTable::FormOf& stored_form_of) {
  const auto elements = static_cast<uint64_t>(c10::multiply_integers(param.shape));
  control::WeightSize size{.elements = elements};
  // A table that is looked up is only kept quantized, never quantized on loading.
  if (!param.form && !(param.spec.is_looked_up && stored_form_of(param.spec))) return size;
  const int64_t rows = param.shape[0], in = param.shape[1];
  size.matrices = elements;
  size.rows = static_cast<uint64_t>(rows);
  const std::optional<QuantForm> stored = stored_form_of(param.spec);
  if (!stored) return size;
  size.stored_elements = elements;
  size.stored_bytes = static_cast<uint64_t>(
      rows * (kernels::RowBytes(stored->type, in) + stored->scales_per_row(in) * static_cast<int64_t>(sizeof(float))));
  return size;
}

}  // namespace

ParamTable SizingTable() { return {at::kFloat, at::kMeta, {}, InStorage(control::WeightStorage::kInt8)}; }

control::ComponentWeights SizesOf(const ParamTable& table, const WeightFolder& weights, control::ComponentRole role) {
  const ParamTable::FormOf stored_form_of = StoredForms(weights);
  const bool transformer = role == control::ComponentRole::kTransformer;
  control::ComponentWeights sizes{.role = role, .blocks = {}};
  for (const Param& param : table.params()) {
    const control::WeightSize size = SizeOf(param, stored_form_of);
    if (transformer && size.matrices > 0 && IsModulation(param.spec.name)) {
      sizes.modulations += size;
      sizes.largest_modulation = std::max(sizes.largest_modulation, size.elements);
    } else if (param.block == Param::kNoBlock || (transformer && !param.spec.partial.sequence)) {
      sizes.frame += size;
    } else {
      if (const auto count = static_cast<size_t>(param.block) + 1; sizes.blocks.size() < count) {
        sizes.blocks.resize(count);
      }
      sizes.blocks[static_cast<size_t>(param.block)] += size;
    }
  }
  return sizes;
}

}  // namespace tessera::models
