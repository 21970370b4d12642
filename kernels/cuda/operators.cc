#include "kernels/cuda/operators.h"

#include <algorithm>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/on_device.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/redispatch.h"
#include "kernels/cuda/residual_norm.h"
#include "kernels/cuda/tensor_views.h"
#include "kernels/cuda/weighted_sums.h"

namespace tessera::kernels::cuda {
namespace {

at::Tensor Dense(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

// Returns the arguments of a norm or a sum of x, or nothing if the kernel does not support x.
std::optional<ResidualNormArguments> OfRows(const at::Tensor& x) {
  const auto number = ToNumber(x.scalar_type());
  const auto view = ViewRows(x);
  if (!number.has_value() || !view.has_value() || view->channels > MaxNormChannels(*number)) return std::nullopt;
  return ResidualNormArguments{
      .number = *number, .images = view->images, .tokens = view->tokens, .channels = view->channels, .x = view->rows};
}

// Adds y and, if present, its gate. Returns false if the kernel does not support them.
bool Add(const at::Tensor& x, const at::Tensor& y, const OptionalTensor& gate, ResidualNormArguments& arguments) {
  const auto view = ViewRows(y);
  if (!view.has_value() || y.sizes() != x.sizes() || y.scalar_type() != x.scalar_type() || y.device() != x.device()) {
    return false;
  }
  arguments.y = view->rows;
  if (!gate.has_value()) return true;
  const auto gates = ViewPerImage(*gate, x, arguments.images, arguments.channels);
  if (gates.has_value()) arguments.gate = *gates;
  return gates.has_value();
}

bool Modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, ResidualNormArguments& arguments) {
  const auto factor = ViewPerImage(scale, x, arguments.images, arguments.channels);
  const auto offset = ViewPerImage(shift, x, arguments.images, arguments.channels);
  if (!factor.has_value() || !offset.has_value()) return false;
  arguments.factor = *factor;
  arguments.offset = *offset;
  arguments.factor_from_one = true;
  return true;
}

bool Weigh(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
           ResidualNormArguments& arguments) {
  const auto factor = ViewForAll(weight, x, arguments.channels);
  if (!factor.has_value()) return false;
  arguments.factor = *factor;
  if (!bias.has_value()) return true;
  const auto offset = ViewForAll(*bias, x, arguments.channels);
  if (offset.has_value()) arguments.offset = *offset;
  return offset.has_value();
}

// Returns the arguments of a LayerNorm of x, or nothing if the kernel does not support them. Either `scale` or `weight`
// is given.
std::optional<ResidualNormArguments> LayerNormOf(const at::Tensor& x, const OptionalTensor& weight,
                                                 const at::Tensor& shift, const OptionalTensor& scale, double eps) {
  auto arguments = OfRows(x);
  if (!arguments.has_value()) return std::nullopt;
  if (scale.has_value()) {
    if (!Modulate(x, shift, *scale, *arguments)) return std::nullopt;
  } else {
    const auto offset = ViewPerImage(shift, x, arguments->images, arguments->channels);
    if (!offset.has_value() || !Weigh(x, *weight, std::nullopt, *arguments)) return std::nullopt;
    arguments->offset = *offset;
  }
  arguments->norm = NormKind::kLayer;
  arguments->eps = eps;
  return arguments;
}

// Likewise of a sum and its LayerNorm.
std::optional<ResidualNormArguments> ResidualNormOf(const at::Tensor& x, const OptionalTensor& gate,
                                                    const at::Tensor& y, const OptionalTensor& weight,
                                                    const OptionalTensor& bias, const OptionalTensor& shift,
                                                    const OptionalTensor& scale, double eps) {
  auto arguments = OfRows(x);
  const bool fits = arguments.has_value() && Add(x, y, gate, *arguments) &&
                    (scale.has_value() ? shift.has_value() && Modulate(x, *shift, *scale, *arguments)
                                       : weight.has_value() && Weigh(x, *weight, bias, *arguments));
  if (!fits) return std::nullopt;
  arguments->norm = NormKind::kLayer;
  arguments->eps = eps;
  return arguments;
}

// Likewise of an RMSNorm.
std::optional<ResidualNormArguments> RmsNormOf(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto arguments = OfRows(x);
  if (!arguments.has_value() || !Weigh(x, weight, std::nullopt, *arguments)) return std::nullopt;
  arguments->norm = NormKind::kRootMeanSquare;
  arguments->eps = eps;
  return arguments;
}

void Run(const at::Tensor& x, const ResidualNormArguments& arguments, const char* name) {
  OnDeviceOf(x, name, [&](cudaStream_t stream) { return LaunchResidualNorm(arguments, stream); });
}

at::Tensor RunNorm(const at::Tensor& x, ResidualNormArguments arguments, const char* name) {
  at::Tensor normalised = Dense(x);
  arguments.normalised = normalised.mutable_data_ptr();
  Run(x, arguments, name);
  return normalised;
}

// The codes and scales of rows of the shape of x, not yet written.
std::tuple<at::Tensor, at::Tensor> EmptyCodes(const at::Tensor& x) {
  return {at::empty(x.sizes(), x.options().dtype(at::kByte)),
          at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat))};
}

// Whether the kernel that quantizes supports the norm.
bool CanQuantize(const std::optional<ResidualNormArguments>& arguments) {
  return arguments.has_value() && arguments->channels <= MaxQuantizedNormChannels(arguments->number);
}

std::tuple<at::Tensor, at::Tensor> RunQuantizedNorm(const at::Tensor& x, ResidualNormArguments arguments,
                                                    const char* name) {
  const auto [codes, scales] = EmptyCodes(x);
  arguments.codes = codes.mutable_data_ptr<uint8_t>();
  arguments.scales = scales.mutable_data_ptr<float>();
  Run(x, arguments, name);
  return {codes, scales};
}

}  // namespace

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  constexpr char kName[] = "tessera::layer_norm_modulate";
  const auto arguments = LayerNormOf(x, std::nullopt, shift, scale, eps);
  if (!arguments.has_value()) return ReferenceOf<LayerNormModulate>::Call(kName, x, shift, scale, eps);
  return RunNorm(x, *arguments, kName);
}

at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps) {
  constexpr char kName[] = "tessera::layer_norm_shift";
  const auto arguments = LayerNormOf(x, weight, shift, std::nullopt, eps);
  if (!arguments.has_value()) return ReferenceOf<LayerNormShift>::Call(kName, x, weight, shift, eps);
  return RunNorm(x, *arguments, kName);
}

at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  constexpr char kName[] = "tessera::gated_residual";
  auto arguments = OfRows(x);
  if (!arguments.has_value() || !Add(x, y, gate, *arguments)) {
    return ReferenceOf<GatedResidual>::Call(kName, x, gate, y);
  }
  at::Tensor sum = Dense(x);
  arguments->sum = sum.mutable_data_ptr();
  Run(x, *arguments, kName);
  return sum;
}

std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const OptionalTensor& gate,
                                                             const at::Tensor& y, const OptionalTensor& weight,
                                                             const OptionalTensor& bias, const OptionalTensor& shift,
                                                             const OptionalTensor& scale, double eps) {
  constexpr char kName[] = "tessera::gated_residual_norm_modulate";
  auto arguments = ResidualNormOf(x, gate, y, weight, bias, shift, scale, eps);
  if (!arguments.has_value()) {
    return ReferenceOf<GatedResidualNormModulate>::Call(kName, x, gate, y, weight, bias, shift, scale, eps);
  }
  at::Tensor sum = Dense(x);
  arguments->sum = sum.mutable_data_ptr();
  return {sum, RunNorm(x, *arguments, kName)};
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  constexpr char kName[] = "tessera::rms_norm";
  const auto arguments = RmsNormOf(x, weight, eps);
  return arguments.has_value() ? RunNorm(x, *arguments, kName) : ReferenceOf<RmsNorm>::Call(kName, x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> QuantizedLayerNorm(const at::Tensor& x, const OptionalTensor& weight,
                                                      const at::Tensor& shift, const OptionalTensor& scale,
                                                      double eps) {
  constexpr char kName[] = "tessera::quantized_layer_norm";
  const auto arguments = LayerNormOf(x, weight, shift, scale, eps);
  if (!CanQuantize(arguments)) return ReferenceOf<QuantizedLayerNorm>::Call(kName, x, weight, shift, scale, eps);
  return RunQuantizedNorm(x, *arguments, kName);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> QuantizedResidualNorm(const at::Tensor& x, const OptionalTensor& gate,
                                                                     const at::Tensor& y, const OptionalTensor& weight,
                                                                     const OptionalTensor& bias,
                                                                     const OptionalTensor& shift,
                                                                     const OptionalTensor& scale, double eps) {
  constexpr char kName[] = "tessera::quantized_residual_norm";
  auto arguments = ResidualNormOf(x, gate, y, weight, bias, shift, scale, eps);
  if (!CanQuantize(arguments)) {
    return ReferenceOf<QuantizedResidualNorm>::Call(kName, x, gate, y, weight, bias, shift, scale, eps);
  }
  at::Tensor sum = Dense(x);
  arguments->sum = sum.mutable_data_ptr();
  const auto [codes, scales] = RunQuantizedNorm(x, *arguments, kName);
  return {sum, codes, scales};
}

std::tuple<at::Tensor, at::Tensor> QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                                    const OptionalTensor& factor, double eps) {
  constexpr char kName[] = "tessera::quantized_rms_norm";
  auto arguments = RmsNormOf(x, weight, eps);
  bool fits = CanQuantize(arguments);
  if (fits && factor.has_value()) {
    const auto multiplier = ViewPerImage(*factor, x, arguments->images, arguments->channels);
    fits = multiplier.has_value();
    if (fits) arguments->multiplier = *multiplier;
  }
  if (!fits) return ReferenceOf<QuantizedRmsNorm>::Call(kName, x, weight, factor, eps);
  return RunQuantizedNorm(x, *arguments, kName);
}

namespace {

// The queries, keys or values, and their norm, in the operator's types.
struct Part {
  const OptionalTensor &out, &weight, &bias;
  double eps;
  bool turns;
};

// Appends the part. Returns false if the kernel does not support it.
bool Append(const Part& part, const at::Tensor& packed, HeadsArguments& arguments) {
  if (!part.out.has_value()) return true;
  const at::Tensor& out = *part.out;  // [b, n, g, h/g, d]
  if (arguments.part_count > 0 && out.size(4) != arguments.head_dim) return false;
  arguments.head_dim = static_cast<int>(out.size(4));
  HeadsPart& heads = arguments.parts[arguments.part_count++];
  heads = {.data = out.mutable_data_ptr(),
           .image_stride = out.stride(0),
           .token_stride = out.stride(1),
           .group_stride = out.stride(2),
           .head_stride = out.stride(3),
           .groups = static_cast<int>(out.size(2)),
           .heads = static_cast<int>(out.size(3)),
           .eps = part.eps,
           .turns = part.turns};
  if (!part.weight.has_value()) return true;
  const auto weight = ViewForAll(*part.weight, packed, arguments.head_dim);
  if (!weight.has_value()) return false;
  heads.weight = weight->data;
  if (!part.bias.has_value()) return true;
  const auto bias = ViewForAll(*part.bias, packed, arguments.head_dim);
  if (bias.has_value()) heads.bias = bias->data;
  return bias.has_value();
}

bool SetAngles(const at::Tensor& packed, const OptionalTensor& cos, const OptionalTensor& sin,
               HeadsArguments& arguments) {
  if (!cos.has_value()) return true;
  const at::ScalarType wide = packed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const at::Tensor& table : {*cos, *sin}) {
    if (table.scalar_type() != wide || table.device() != packed.device() || !table.is_contiguous()) return false;
  }
  arguments.cos = cos->const_data_ptr();
  arguments.sin = sin->const_data_ptr();
  return true;
}

}  // namespace

void QkvNormRope(const at::Tensor& packed, const OptionalTensor& query_weight, const OptionalTensor& query_bias,
                 double query_eps, const OptionalTensor& key_weight, const OptionalTensor& key_bias, double key_eps,
                 const OptionalTensor& cos, const OptionalTensor& sin, const OptionalTensor& q, const OptionalTensor& k,
                 const OptionalTensor& v) {
  constexpr char kName[] = "tessera::qkv_norm_rope";
  const auto number = ToNumber(packed.scalar_type());
  const auto rows = ViewRows(packed);
  bool fits = number.has_value() && rows.has_value();
  HeadsArguments arguments;
  if (fits) {
    arguments = {.number = *number, .images = rows->images, .tokens = rows->tokens, .packed = rows->rows};
    const OptionalTensor none;
    fits = SetAngles(packed, cos, sin, arguments);
    for (const Part& part : {Part{q, query_weight, query_bias, query_eps, cos.has_value()},
                             Part{k, key_weight, key_bias, key_eps, cos.has_value()}, Part{v, none, none, 0, false}}) {
      fits = fits && Append(part, packed, arguments);
    }
    fits = fits && arguments.head_dim <= MaxHeadDim(*number);
  }
  if (!fits) {
    return ReferenceOf<QkvNormRope>::Call(kName, packed, query_weight, query_bias, query_eps, key_weight, key_bias,
                                          key_eps, cos, sin, q, k, v);
  }
  OnDeviceOf(packed, kName, [&](cudaStream_t stream) { return LaunchHeads(arguments, stream); });
}

namespace {

std::optional<PartialRead> ViewPartial(const at::Tensor& read, const at::Tensor& lse) {
  if (read.dim() != 4 || lse.dim() != 3 || (read.size(3) > 1 && read.stride(3) != 1)) return std::nullopt;
  return PartialRead{.data = read.const_data_ptr(),
                     .image_stride = read.stride(0),
                     .token_stride = read.stride(1),
                     .head_stride = read.stride(2),
                     .lse = lse.const_data_ptr(),
                     .lse_image_stride = lse.stride(0),
                     .lse_token_stride = lse.stride(1),
                     .lse_head_stride = lse.stride(2)};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse) {
  constexpr char kName[] = "tessera::merge_attention";
  const auto number = ToNumber(other_read.scalar_type());
  const auto part = ViewPartial(read, lse), other = ViewPartial(other_read, other_lse);
  const at::ScalarType wide = other_read.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool is_wide = read.scalar_type() == wide && wide != other_read.scalar_type();
  const bool fits = number.has_value() && part.has_value() && other.has_value() && lse.scalar_type() == wide &&
                    other_lse.scalar_type() == wide && (is_wide || read.scalar_type() == other_read.scalar_type()) &&
                    read.sizes() == other_read.sizes();
  if (!fits) return ReferenceOf<MergeAttention>::Call(kName, read, lse, other_read, other_lse);
  at::Tensor merged = at::empty(read.sizes(), read.options().dtype(wide));
  at::Tensor merged_lse = at::empty(lse.sizes(), lse.options());
  const MergeArguments arguments{.number = *number,
                                 .sum_is_wide = is_wide,
                                 .images = read.size(0),
                                 .tokens = read.size(1),
                                 .heads = static_cast<int>(read.size(2)),
                                 .head_dim = static_cast<int>(read.size(3)),
                                 .read = *part,
                                 .other = *other,
                                 .merged = merged.mutable_data_ptr(),
                                 .merged_lse = merged_lse.mutable_data_ptr()};
  OnDeviceOf(read, kName, [&](cudaStream_t stream) { return LaunchMerge(arguments, stream); });
  return {merged, merged_lse};
}

namespace {

// Returns nothing if the kernel does not support x or its gate.
std::optional<at::Tensor> Activated(const at::Tensor& x, const OptionalTensor& gate, Activation activation,
                                    const char* name) {
  const auto number = ToNumber(x.scalar_type());
  const auto rows = ViewRows(x), gates = gate.has_value() ? ViewRows(*gate) : std::nullopt;
  if (!number.has_value() || !rows.has_value() || (gate.has_value() && !gates.has_value())) return std::nullopt;
  at::Tensor y = Dense(x);
  const ActivationArguments arguments{.number = *number,
                                      .activation = activation,
                                      .images = rows->images,
                                      .tokens = rows->tokens,
                                      .channels = rows->channels,
                                      .x = rows->rows,
                                      .gate = gates.has_value() ? gates->rows : ConstRows(),
                                      .y = y.mutable_data_ptr()};
  OnDeviceOf(x, name, [&](cudaStream_t stream) { return LaunchActivation(arguments, stream); });
  return y;
}

// Applies the activation, with `reference` if the kernel does not support x.
at::Tensor Activate(const at::Tensor& x, Activation activation, const char* name,
                    at::Tensor (*reference)(const char*, const at::Tensor&)) {
  const std::optional<at::Tensor> y = Activated(x, std::nullopt, activation, name);
  return y.has_value() ? *y : reference(name, x);
}

}  // namespace

at::Tensor GeluTanh(const at::Tensor& x) {
  return Activate(x, Activation::kGeluTanh, "tessera::gelu_tanh", ReferenceOf<GeluTanh>::Call);
}
at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate) {
  constexpr char kName[] = "tessera::geglu_tanh";
  const std::optional<at::Tensor> y = Activated(x, gate, Activation::kGeluTanh, kName);
  return y.has_value() ? *y : ReferenceOf<GegluTanh>::Call(kName, x, gate);
}
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  constexpr char kName[] = "tessera::swiglu";
  const std::optional<at::Tensor> y = Activated(gate, value, Activation::kSilu, kName);
  return y.has_value() ? *y : ReferenceOf<SwiGlu>::Call(kName, gate, value);
}
at::Tensor Gelu(const at::Tensor& x) {
  return Activate(x, Activation::kGelu, "tessera::gelu", ReferenceOf<Gelu>::Call);
}
at::Tensor Silu(const at::Tensor& x) {
  return Activate(x, Activation::kSilu, "tessera::silu", ReferenceOf<Silu>::Call);
}
at::Tensor Sigmoid(const at::Tensor& x) {
  return Activate(x, Activation::kSigmoid, "tessera::sigmoid", ReferenceOf<Sigmoid>::Call);
}

namespace {

// Returns nothing if the kernel does not support x or its gate.
std::optional<std::tuple<at::Tensor, at::Tensor>> QuantizedActivation(const at::Tensor& x, const OptionalTensor& gate,
                                                                      Activation activation, const char* name) {
  const auto number = ToNumber(x.scalar_type());
  if (!number.has_value()) return std::nullopt;
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor gates = gate.has_value() ? gate->reshape({-1, x.size(-1)}) : at::Tensor();
  if (!ViewRows(rows).has_value() || (gates.defined() && !ViewRows(gates).has_value())) return std::nullopt;
  const auto [codes, scales] = EmptyCodes(x);
  const QuantizeRowsArguments arguments{.number = *number,
                                        .rows = rows.size(0),
                                        .columns = rows.size(1),
                                        .from = rows.const_data_ptr(),
                                        .row_stride = rows.stride(0),
                                        .activates = true,
                                        .activation = activation,
                                        .gate = gates.defined() ? gates.const_data_ptr() : nullptr,
                                        .gate_stride = gates.defined() ? gates.stride(0) : 0,
                                        .codes = codes.mutable_data_ptr<uint8_t>(),
                                        .scales = scales.mutable_data_ptr<float>()};
  OnDeviceOf(x, name, [&](cudaStream_t stream) { return LaunchQuantizeRows(arguments, stream); });
  return std::tuple(codes, scales);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> QuantizedGeluTanh(const at::Tensor& x) {
  constexpr char kName[] = "tessera::quantized_gelu_tanh";
  const auto rows = QuantizedActivation(x, std::nullopt, Activation::kGeluTanh, kName);
  return rows.has_value() ? *rows : ReferenceOf<QuantizedGeluTanh>::Call(kName, x);
}

std::tuple<at::Tensor, at::Tensor> QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  constexpr char kName[] = "tessera::quantized_swiglu";
  const auto rows = QuantizedActivation(gate, value, Activation::kSilu, kName);
  return rows.has_value() ? *rows : ReferenceOf<QuantizedSwiGlu>::Call(kName, gate, value);
}

std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights, const OptionalTensor& state) {
  constexpr char kName[] = "tessera::weighted_sums";
  const at::Tensor& first = inputs.front();
  const size_t sums = weights.size() / inputs.size();
  bool fits = inputs.size() <= kMostSummed && sums <= kMostSums;
  for (const at::Tensor& x : inputs) fits = fits && x.is_contiguous() && x.device() == first.device();
  if (!fits) return ReferenceOf<WeightedSums>::Call(kName, inputs, weights, state);
  WeightedSumsArguments arguments{
      .number = *ToNumber(first.scalar_type()), .count = first.numel(), .inputs = static_cast<int>(inputs.size())};
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < inputs.size(); ++i) arguments.from[i] = inputs[i].const_data_ptr();
  for (size_t s = 0; s < sums; ++s) {
    std::ranges::copy(weights.slice(s * inputs.size(), inputs.size()), arguments.weights[s]);
    result.push_back(Dense(first));
    arguments.to[s] = result.back().mutable_data_ptr();
  }
  if (state.has_value()) arguments.state = static_cast<unsigned long long*>(state->mutable_data_ptr());
  OnDeviceOf(first, kName, [&](cudaStream_t stream) { return LaunchWeightedSums(arguments, stream); });
  return result;
}

}  // namespace tessera::kernels::cuda
