// Makes inputs of attention and defines attention as plain sums, for the tests of kernels/.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/support/worst_error.h"

namespace tessera {

struct AttentionCase {
  at::Tensor q;                        // [b, n, h, d]
  at::Tensor k;                        // [b, t, h, d]
  at::Tensor v;                        // [b, t, h, d]
  std::optional<at::Tensor> key_bias;  // [b, t]
  double scale = 0;
};

struct AttentionSizes {
  int64_t batch = 2;
  int64_t tokens = 5;
  int64_t keys = 7;
  int64_t heads = 3;
  int64_t head_dim = 16;
  bool masked = false;  // the first entry keeps three quarters of its keys, the second entry one eighth and one
};

inline AttentionCase MakeAttentionCase(const AttentionSizes& sizes, uint64_t seed = 1) {
  at::manual_seed(seed);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  AttentionCase c;
  c.q = at::randn({sizes.batch, sizes.tokens, sizes.heads, sizes.head_dim}, options);
  c.k = at::randn({sizes.batch, sizes.keys, sizes.heads, sizes.head_dim}, options);
  c.v = at::randn({sizes.batch, sizes.keys, sizes.heads, sizes.head_dim}, options);
  c.scale = 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
  if (sizes.masked) {
    c.key_bias = at::zeros({sizes.batch, sizes.keys}, options);
    for (int64_t b = 0; b < sizes.batch; ++b) {
      const int64_t kept = b % 2 == 0 ? (sizes.keys * 3 + 3) / 4 : sizes.keys / 8 + 1;
      c.key_bias->narrow(0, b, 1).narrow(1, kept, sizes.keys - kept).fill_(-10000.0);
    }
  }
  return c;
}

inline AttentionCase ToType(AttentionCase c, at::ScalarType type) {
  c.q = c.q.to(type);
  c.k = c.k.to(type);
  c.v = c.v.to(type);
  if (c.key_bias.has_value()) c.key_bias = c.key_bias->to(type);
  return c;
}

// Computes attention by its definition, in fp64 for inputs of any dtype.
inline at::Tensor AttentionByDefinition(const AttentionCase& c) {
  const at::Tensor q = c.q.to(at::kDouble).contiguous();
  const at::Tensor k = c.k.to(at::kDouble).contiguous();
  const at::Tensor v = c.v.to(at::kDouble).contiguous();
  const at::Tensor bias = c.key_bias.value_or(at::zeros({k.size(0), k.size(1)})).to(at::kDouble).contiguous();
  at::Tensor out = at::zeros(q.sizes(), q.options());
  const auto q_at = q.accessor<double, 4>();
  const auto k_at = k.accessor<double, 4>();
  const auto v_at = v.accessor<double, 4>();
  const auto bias_at = bias.accessor<double, 2>();
  auto out_at = out.accessor<double, 4>();
  const int64_t keys = k.size(1);
  std::vector<double> weight(keys);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(2); ++h) {
      for (int64_t n = 0; n < q.size(1); ++n) {
        double largest = -INFINITY;
        for (int64_t t = 0; t < keys; ++t) {
          double dot = 0;
          for (int64_t d = 0; d < q.size(3); ++d) dot += q_at[b][n][h][d] * k_at[b][t][h][d];
          weight[t] = dot * c.scale + bias_at[b][t];
          largest = std::max(largest, weight[t]);
        }
        double total = 0;
        for (double& w : weight) total += w = std::exp(w - largest);
        for (int64_t t = 0; t < keys; ++t) {
          for (int64_t d = 0; d < q.size(3); ++d) out_at[b][n][h][d] += weight[t] / total * v_at[b][t][h][d];
        }
      }
    }
  }
  return out;
}

}  // namespace tessera
