// ComponentWeights holds how large the weights of a component are and how they are divided among its blocks, so that
// the memory they take in any dtype and storage can be computed without the files. Plain values, free of LibTorch.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/model/component_role.h"

namespace tessera::control {

enum class WeightStorage;  // control/parameters/weight_storage.h

// Of one size; so sums of bytes over all blocks fit into 63 bits.
inline constexpr uint64_t kMostElements = uint64_t{1} << 44;

struct WeightSize {
  uint64_t elements = 0;         // of all tensors
  uint64_t matrices = 0;         // the elements of matrices of products, which alone can be quantized
  uint64_t rows = 0;             // of these matrices
  uint64_t stored_elements = 0;  // the elements of the matrices that the files hold quantized
  uint64_t stored_bytes = 0;     // of those matrices, with their scales, as they are kept

  WeightSize& operator+=(const WeightSize& other);
  bool operator==(const WeightSize&) const = default;
};

// Returns the bytes of these weights in memory, where a plain number takes `element_bytes`.
int64_t BytesOf(const WeightSize& size, WeightStorage storage, int64_t element_bytes);

struct ComponentWeights {
  ComponentRole role = ComponentRole::kOther;
  std::vector<WeightSize> blocks;   // of each block, what is brought with it
  WeightSize frame;                 // everything else
  WeightSize modulations;           // of a transformer: the matrices that are read once per image
  uint64_t largest_modulation = 0;  // elements of the largest of them

  bool operator==(const ComponentWeights&) const = default;
};

constexpr auto FieldsOf(const WeightSize*) {
  using base::Field;
  using W = WeightSize;
  constexpr base::Integer kCount = {0, kMostElements};
  return std::tuple(Field("elements", &W::elements, kCount), Field("matrices", &W::matrices, kCount),
                    Field("rows", &W::rows, kCount), Field("stored_elements", &W::stored_elements, kCount),
                    Field("stored_bytes", &W::stored_bytes, kCount));
}
// The parts are no more than the whole.
absl::Status CheckRules(const WeightSize& size);

constexpr auto FieldsOf(const ComponentWeights*) {
  using base::Field;
  using C = ComponentWeights;
  return std::tuple(Field("role", &C::role), Field("blocks", &C::blocks, base::List<base::Nested>{.most = 1 << 10}),
                    Field("frame", &C::frame), Field("modulations", &C::modulations),
                    Field("largest_modulation", &C::largest_modulation, base::Integer{0, kMostElements}));
}

}  // namespace tessera::control
