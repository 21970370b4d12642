#include "runtime/training/initial_weights.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "runtime/denoising/noise.h"
#include "runtime/training/checkpoints/param_pieces.h"
#include "runtime/training/sample_noise.h"

namespace tessera::runtime {
namespace {

// The initial distribution of a parameter. A scale of 0 means zeros; uniform values are within the scale.
struct Start {
  enum Kind { kConstant, kNormal, kUniform } kind = kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound
};

// diffusers' names, which all families have.
bool IsOutput(absl::string_view module) { return absl::StartsWith(module, "proj_out"); }
bool IsModulation(absl::string_view module) {
  if (!absl::EndsWith(module, ".linear")) return false;
  const absl::string_view parent = module.substr(0, module.size() - absl::string_view(".linear").size());
  const size_t dot = parent.rfind('.');
  return absl::StartsWith(dot == absl::string_view::npos ? parent : parent.substr(dot + 1), "norm");
}
bool IsCrossAttentionOutput(absl::string_view module) { return absl::EndsWith(module, "attn2.to_out.0"); }
bool IsEmbedder(absl::string_view module) {
  return absl::EndsWith(module, ".linear_1") || absl::EndsWith(module, ".linear_2") || module == "adaln_single.linear";
}

Start StartOf(const models::ParamSpec& spec) {
  constexpr double kTableDeviation = 0.02;
  const absl::string_view name = spec.name;
  if (absl::EndsWith(name, "scale_shift_table")) {
    return {.kind = Start::kNormal, .value = 1 / std::sqrt(static_cast<double>(spec.shape.back()))};
  }
  if (absl::EndsWith(name, ".bias")) return {};
  if (!absl::EndsWith(name, ".weight") || absl::EndsWith(name, "embedding_table.weight")) {
    return {.kind = Start::kNormal, .value = kTableDeviation};
  }
  if (spec.shape.size() < 2) return {.kind = Start::kConstant, .value = 1};
  const absl::string_view module = name.substr(0, name.size() - absl::string_view(".weight").size());
  if (IsOutput(module) || IsModulation(module) || IsCrossAttentionOutput(module)) return {};
  if (IsEmbedder(module)) return {.kind = Start::kNormal, .value = kTableDeviation};
  const auto out = static_cast<double>(spec.shape[0]);
  const double in = static_cast<double>(c10::multiply_integers(spec.shape)) / out;
  return {.kind = Start::kUniform, .value = std::sqrt(6 / (in + out))};
}

// Returns the whole parameter in fp64; `number` is its number among the parameters of the model.
at::Tensor Draw(const models::ParamSpec& spec, int64_t number, uint64_t seed) {
  const Start start = StartOf(spec);
  const NoiseKey key = StreamOf({.seed = seed, .sample = number}, NoisePurpose::kInitialWeights);
  if (start.kind == Start::kConstant) return at::full(spec.shape, start.value, at::kDouble);
  if (start.kind == Start::kNormal) return NormalOf(key, spec.shape, at::kDouble).mul_(start.value);
  const at::Tensor values = at::empty(spec.shape, at::kDouble);
  auto* const numbers = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    numbers[i] = start.value * (2 * UniformOf(key, static_cast<uint64_t>(i)) - 1);
  }
  return values;
}

bool IsOfABlock(const models::Param& param) { return !param.spec.buffer && param.block != models::Param::kNoBlock; }

// Number of parameters, except buffers, in the blocks of earlier and later stages.
struct Elsewhere {
  int64_t earlier = 0, later = 0;
};

Elsewhere CountElsewhere(std::span<const models::Param> params, parallel::Communicator& pipe) {
  if (pipe.size() == 1) return {};
  const at::Tensor counts =
      at::zeros({pipe.size()}, at::TensorOptions(at::kDouble).device(params.front().storage.device()));
  counts[pipe.rank()].fill_(static_cast<double>(std::ranges::count_if(params, IsOfABlock)));
  pipe.Sum(counts, counts);
  const auto sum = [&](int64_t begin, int64_t end) {
    return static_cast<int64_t>(counts.slice(0, begin, end).sum().item<double>());
  };
  return {.earlier = sum(0, pipe.rank()), .later = sum(pipe.rank() + 1, pipe.size())};
}

}  // namespace

void DrawInitialWeights(std::span<const models::Param> params, const models::TensorShard& shard, uint64_t seed,
                        parallel::Communicator& pipe) {
  const at::NoGradGuard no_gradients;
  const auto [earlier, later] = CountElsewhere(params, pipe);
  int64_t number = 0;
  bool in_blocks = false;
  for (const models::Param& param : params) {
    const models::ParamSpec& spec = param.spec;
    if (spec.buffer) continue;
    // All blocks are consecutive, with the same frame parameters before and after them on every stage.
    if (IsOfABlock(param) != in_blocks) {
      number += in_blocks ? later : earlier;
      in_blocks = !in_blocks;
    }
    const at::Tensor whole = Draw(spec, number++, seed);
    for (const Piece& piece : PiecesOf(spec.name, spec, shard, param.Value())) {
      at::Tensor part = whole;
      for (size_t i = 0; i < spec.shape.size(); ++i) {
        part = part.narrow(static_cast<int64_t>(i), piece.box.offset[i], piece.box.extent[i]);
      }
      piece.tensor.copy_(part);
    }
  }
}

}  // namespace tessera::runtime
