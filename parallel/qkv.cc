#include "parallel/qkv.h"

namespace tessera::parallel {
namespace {

int64_t Columns(const Projection& projection) { return projection.with_queries ? 3 : 2; }

bool IsReady(const Projection& projection) {
  return !projection.query_norm.weight.defined() && !projection.key_norm.weight.defined() &&
         !projection.rotary.cos.defined();
}

// [b, tokens, h, d] in groups of one.
at::Tensor OneGroup(const at::Tensor& x) { return x.unsqueeze(2); }

}  // namespace

AttentionShape::AttentionShape(const AttentionInput& input)
    : batch(input.projections[0].packed.size(0)),
      queries(0),
      keys(0),
      heads(input.projections[0].packed.size(2) / Columns(input.projections[0]) / input.head_dim) {
  for (const Projection& projection : input.projections) {
    keys += projection.packed.size(1);
    if (projection.with_queries) queries += projection.packed.size(1);
  }
}

void WriteQkv(const AttentionInput& input, const kernels::HeadsOut& out) {
  int64_t query = 0, key = 0;
  for (const Projection& projection : input.projections) {
    const int64_t tokens = projection.packed.size(1);
    const auto rows = [tokens](const at::Tensor& x, int64_t first) {
      return x.defined() ? x.narrow(1, first, tokens) : at::Tensor();
    };
    kernels::HeadsOut own{.q = {}, .k = rows(out.k, key), .v = rows(out.v, key)};
    if (projection.with_queries) own.q = rows(out.q, query);
    // Values that are not requested remain in the projection.
    const int64_t columns = projection.packed.size(2), inner = columns / Columns(projection);
    kernels::QkvNormRope(out.v.defined() ? projection.packed : projection.packed.narrow(2, 0, columns - inner),
                         projection.query_norm, projection.key_norm, projection.rotary, own);
    key += tokens;
    if (projection.with_queries) query += tokens;
  }
}

Qkv QkvOf(const AttentionInput& input) {
  const AttentionShape shape(input);
  const at::Tensor& packed = input.projections[0].packed;
  Qkv result{.q = {}, .k = {}, .v = {}, .scale = input.scale, .queries = input.queries, .keys = input.keys};
  const bool is_one = input.projections.size() == 1;
  if (is_one) {
    // Split in one operation, so that the gradient of the projection is also assembled in one.
    const std::vector<at::Tensor> parts =
        packed.unflatten(2, {Columns(input.projections[0]), shape.heads, input.head_dim}).unbind(2);
    result.v = parts.back();
    if (IsReady(input.projections[0]) && input.projections[0].with_queries) {
      result.q = parts[0];
      result.k = parts[1];
      return result;
    }
  }
  const auto memory = [&](int64_t tensors, int64_t tokens) {
    return at::empty({tensors, shape.batch, tokens, shape.heads, input.head_dim},
                     packed.options().requires_grad(false));
  };
  const at::Tensor keys = memory(is_one ? 1 : 2, shape.keys);
  result.q = memory(1, shape.queries)[0];
  result.k = keys[0];
  kernels::HeadsOut out{.q = OneGroup(result.q), .k = OneGroup(result.k), .v = {}};
  if (!is_one) {
    result.v = keys[1];
    out.v = OneGroup(result.v);
  }
  WriteQkv(input, out);
  return result;
}

}  // namespace tessera::parallel
