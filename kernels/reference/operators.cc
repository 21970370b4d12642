#include "kernels/reference/operators.h"

#include "kernels/reference/digest.h"

namespace tessera::kernels::reference {
namespace {

// fp64 is computed in fp64; everything narrower in fp32.
at::Tensor Widen(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }
std::optional<at::Tensor> Widen(const std::optional<at::Tensor>& x) {
  return x.has_value() ? std::optional(Widen(*x)) : std::nullopt;
}

// x * rsqrt(mean(x²) + eps) over the last dimension.
at::Tensor OverRootMeanSquare(const at::Tensor& x, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
}

// x [b, n, h, d], wide.
at::Tensor NormalizeHeads(const at::Tensor& x, const HeadNorm& norm) {
  if (!norm.weight.defined()) return x;
  const at::Tensor weight = Widen(norm.weight);
  if (norm.bias.defined()) return at::layer_norm(x, {x.size(-1)}, weight, Widen(norm.bias), norm.eps);
  return OverRootMeanSquare(x, norm.eps) * weight;
}

// x [b, n, h, d], wide; cos, sin [n, d/2].
at::Tensor RotateHeads(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor pairs = x.unflatten(-1, {-1, 2});  // [b, n, h, d/2, 2]
  const at::Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);  // [n, 1, d/2]
  return at::stack({even * c - odd * s, odd * c + even * s}, -1).flatten(-2);
}

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale) {
  std::optional<at::Tensor> mask;
  if (key_bias.has_value()) {
    mask = key_bias->to(q.scalar_type()).unsqueeze(1).unsqueeze(1);  // [b, 1, 1, t]
    mask = mask->expand({q.size(0), 1, q.size(1), k.size(1)});
  }
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask,
                                          /*dropout_p=*/0.0, /*is_causal=*/false, scale)
      .transpose(1, 2)
      .contiguous();
}

std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale) {
  const auto heads = [](const at::Tensor& x) { return Widen(x).transpose(1, 2); };  // [b, h, tokens, d]
  const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(-1, -2)) * scale;
  const at::Tensor lse = at::logsumexp(scores, -1);  // [b, h, n]
  const at::Tensor read = at::matmul(at::exp(scores - lse.unsqueeze(-1)), heads(v));
  return {read.transpose(1, 2).to(q.scalar_type()), lse.transpose(1, 2)};
}

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  const at::Tensor normalized = at::layer_norm(Widen(x), {x.size(-1)}, {}, {}, eps);
  return (normalized * (1 + Widen(scale).unsqueeze(1)) + Widen(shift).unsqueeze(1)).to(x.scalar_type());
}

at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps) {
  const at::Tensor normalized = at::layer_norm(Widen(x), {x.size(-1)}, Widen(weight), {}, eps);
  return (normalized + Widen(shift).unsqueeze(1)).to(x.scalar_type());
}

at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  return (Widen(x) + Widen(gate).unsqueeze(1) * Widen(y)).to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y,
                                                             const std::optional<at::Tensor>& weight,
                                                             const std::optional<at::Tensor>& bias,
                                                             const std::optional<at::Tensor>& shift,
                                                             const std::optional<at::Tensor>& scale, double eps) {
  const at::Tensor sum = gate.has_value() ? GatedResidual(x, *gate, y) : x + y;
  if (scale.has_value()) return {sum, LayerNormModulate(sum, *shift, *scale, eps)};
  return {sum, at::layer_norm(Widen(sum), {x.size(-1)}, Widen(weight), Widen(bias), eps).to(x.scalar_type())};
}

void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out) {
  int64_t column = 0;
  const auto next = [&](const at::Tensor& part) {  // returns the columns of a part, [b, n, h, d]
    const int64_t heads = part.size(2) * part.size(3), inner = heads * part.size(4);
    column += inner;
    return packed.narrow(-1, column - inner, inner).unflatten(-1, {heads, -1});
  };
  const auto write = [&](const at::Tensor& part, const HeadNorm& norm, const RotaryTables& turn) {
    if (!part.defined()) return;
    at::Tensor x = NormalizeHeads(Widen(next(part)), norm);
    if (turn.cos.defined()) x = RotateHeads(x, turn.cos, turn.sin);
    // grad_fn() updates a view after writes to other parts of its buffer; without it copy_ would treat the view as a
    // leaf.
    if (part.requires_grad()) part.grad_fn();
    part.copy_(x.reshape(part.sizes()));
  };
  write(out.q, query_norm, rotary);
  write(out.k, key_norm, rotary);
  write(out.v, {}, {});
}

at::Tensor GeluTanh(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate) { return GeluTanh(x) * gate; }

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value) { return Silu(gate) * value; }

at::Tensor Silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor Gelu(const at::Tensor& x) { return at::gelu(x); }
at::Tensor Sigmoid(const at::Tensor& x) { return at::sigmoid(x); }
at::Tensor Cos(const at::Tensor& x) { return at::cos(x); }
at::Tensor Sin(const at::Tensor& x) { return at::sin(x); }

at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu) {
  const auto per_channel = [&](const at::Tensor& vector) { return Widen(vector).unsqueeze(-1).unsqueeze(-1); };
  const at::Tensor y = Widen(x) * per_channel(factor) + per_channel(offset);
  return (silu ? at::silu(y) : y).to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups) {
  if (x.numel() == 0) {
    const at::Tensor none = at::zeros({x.size(0), groups}, x.options().dtype(at::kDouble));
    return {none, none.clone()};
  }
  const at::Tensor values = Widen(x).reshape({x.size(0), groups, -1});
  const auto [variance, mean] = at::var_mean(values, at::IntArrayRef{2}, /*correction=*/0);
  return {mean.to(at::kDouble), variance.to(at::kDouble) * static_cast<double>(values.size(2))};
}

at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding) {
  if (padding[0] == padding[1] && padding[2] == padding[3]) {
    return at::conv2d(x, weight, bias, stride, at::IntArrayRef{padding[0], padding[2]});
  }
  return at::conv2d(at::constant_pad_nd(x, {padding[2], padding[3], padding[0], padding[1]}), weight, bias, stride);
}

at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count) {
  const int64_t height = 2 * x.size(2), top = std::max<int64_t>(0, first - 1), end = first + count;
  const at::Tensor enlarged = at::upsample_nearest2d(x, {height, 2 * x.size(3)}).slice(2, top, end + 1);
  return Conv2d(enlarged, weight, bias, 1, {first == 0 ? 1 : 0, end == height ? 1 : 0, 1, 1});
}

std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse) {
  const at::Tensor merged = at::logaddexp(lse, other_lse);
  const auto weighted = [&](const at::Tensor& x, const at::Tensor& own) {
    return x.to(lse.scalar_type()) * at::exp(own - merged).unsqueeze(-1);
  };
  return {weighted(read, lse) + weighted(other_read, other_lse), merged};
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return (OverRootMeanSquare(Widen(x), eps) * Widen(weight)).to(x.scalar_type());
}

at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return at::linear(x, weight, bias);
}

at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return GeluTanh(LinearProduct(x, weight, bias));
}

std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state) {
  std::vector<at::Tensor> sums;
  for (size_t s = 0; s < weights.size() / inputs.size(); ++s) {
    at::Tensor sum;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const double weight = weights[s * inputs.size() + i];
      if (weight == 0) continue;
      const at::Tensor product = inputs[i] * weight;
      sum = sum.defined() ? sum + product : product;
    }
    sums.push_back(sum.defined() ? sum : at::zeros_like(inputs.front()));
  }
  if (!state.has_value()) return sums;
  const at::Tensor numbers = sums.front().contiguous().view(-1);
  const at::Tensor words = numbers.view(numbers.scalar_type() == at::kDouble ? at::kLong : at::kInt).to(at::kLong);
  const at::Tensor of_words = at::arange(1, words.numel() + 1, words.options()) * int64_t{kDigestSpread} + 1;
  state->select(0, 0).mul_(at::isfinite(numbers).all());
  state->select(0, 1).add_((words * of_words).sum());
  return sums;
}

}  // namespace tessera::kernels::reference
