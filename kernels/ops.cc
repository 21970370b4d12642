#include "kernels/ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <algorithm>

#include "base/macros/planted.h"
#include "kernels/cpu/operators.h"
#include "kernels/gradients.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels {
namespace {

constexpr char kAttention[] = "tessera::attention";
constexpr char kAttentionWithLse[] = "tessera::attention_with_lse";
constexpr char kLayerNormModulate[] = "tessera::layer_norm_modulate";
constexpr char kLayerNormShift[] = "tessera::layer_norm_shift";
constexpr char kGatedResidual[] = "tessera::gated_residual";
constexpr char kGatedResidualNormModulate[] = "tessera::gated_residual_norm_modulate";
constexpr char kQkvNormRope[] = "tessera::qkv_norm_rope";
constexpr char kGeluTanh[] = "tessera::gelu_tanh";
constexpr char kGegluTanh[] = "tessera::geglu_tanh";
constexpr char kSwiGlu[] = "tessera::swiglu";
constexpr char kRmsNorm[] = "tessera::rms_norm";
constexpr char kSilu[] = "tessera::silu";
constexpr char kGelu[] = "tessera::gelu";
constexpr char kSigmoid[] = "tessera::sigmoid";
constexpr char kCos[] = "tessera::cos";
constexpr char kSin[] = "tessera::sin";
constexpr char kChannelAffine[] = "tessera::channel_affine";
constexpr char kGroupMoments[] = "tessera::group_moments";
constexpr char kConv2d[] = "tessera::conv2d";
constexpr char kUpsampledConv2d[] = "tessera::upsampled_conv2d";
constexpr char kMergeAttention[] = "tessera::merge_attention";
constexpr char kLinearProduct[] = "tessera::linear_product";
constexpr char kLinearGeluTanh[] = "tessera::linear_gelu_tanh";
constexpr char kWidenWeight[] = "tessera::widen_weight";
constexpr char kQuantProduct[] = "tessera::quant_product";
constexpr char kQuantizeActivations[] = "tessera::quantize_activations";
constexpr char kFp8Product[] = "tessera::fp8_product";
constexpr char kWeightedSums[] = "tessera::weighted_sums";

template <typename Signature, const char* kName>
const c10::TypedOperatorHandle<Signature>& Operator() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(kName, "").typed<Signature>();
  return handle;
}

bool RequiresGrad(const at::Tensor& x) { return x.requires_grad(); }
bool RequiresGrad(const std::optional<at::Tensor>& x) { return x.has_value() && x->requires_grad(); }
bool RequiresGrad(double) { return false; }
bool RequiresGrad(at::IntArrayRef) { return false; }
bool RequiresGrad(at::ArrayRef<double>) { return false; }
bool RequiresGrad(at::TensorList x) {
  return std::ranges::any_of(x, [](const at::Tensor& one) { return one.requires_grad(); });
}

at::Tensor CpuAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const std::optional<at::Tensor>& key_bias, double scale) {
  return cpu::Attention(q, k, v, key_bias, scale, cpu::BestIsa());
}

std::tuple<at::Tensor, at::Tensor> CpuAttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                       double scale) {
  return cpu::AttentionWithLse(q, k, v, scale, cpu::BestIsa());
}

at::Tensor CpuSilu(const at::Tensor& x) { return cpu::Silu(x, cpu::BestIsa()); }

at::Tensor CpuChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu) {
  return cpu::ChannelAffine(x, factor, offset, silu, cpu::BestIsa());
}

std::tuple<at::Tensor, at::Tensor> CpuGroupMoments(const at::Tensor& x, int64_t groups) {
  return cpu::GroupMoments(x, groups, cpu::BestIsa());
}

at::Tensor CpuConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                     at::IntArrayRef padding) {
  return cpu::Conv2d(x, weight, bias, stride, padding, cpu::BestIsa());
}

at::Tensor CpuUpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                              int64_t count) {
  return cpu::UpsampledConv2d(x, weight, bias, first, count, cpu::BestIsa());
}

at::Tensor CpuLayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  return cpu::LayerNormModulate(x, shift, scale, eps, cpu::BestIsa());
}

at::Tensor CpuLayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps) {
  return cpu::LayerNormShift(x, weight, shift, eps, cpu::BestIsa());
}

at::Tensor CpuGatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  return cpu::GatedResidual(x, gate, y, cpu::BestIsa());
}

std::tuple<at::Tensor, at::Tensor> CpuGatedResidualNormModulate(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale, double eps) {
  return cpu::GatedResidualNormModulate(x, gate, y, weight, bias, shift, scale, eps, cpu::BestIsa());
}

// Calls a version of QkvNormRope with the arguments of the dispatcher.
template <auto kVersion>
void FlatQkvNormRope(const at::Tensor& packed, const std::optional<at::Tensor>& query_weight,
                     const std::optional<at::Tensor>& query_bias, double query_eps,
                     const std::optional<at::Tensor>& key_weight, const std::optional<at::Tensor>& key_bias,
                     double key_eps, const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin,
                     const std::optional<at::Tensor>& q, const std::optional<at::Tensor>& k,
                     const std::optional<at::Tensor>& v) {
  const auto tensor = [](const std::optional<at::Tensor>& x) { return x.value_or(at::Tensor()); };
  kVersion(packed, {.weight = tensor(query_weight), .bias = tensor(query_bias), .eps = query_eps},
           {.weight = tensor(key_weight), .bias = tensor(key_bias), .eps = key_eps},
           {.cos = tensor(cos), .sin = tensor(sin)}, {.q = tensor(q), .k = tensor(k), .v = tensor(v)});
}

void CpuQkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                    const RotaryTables& rotary, const HeadsOut& out) {
  cpu::QkvNormRope(packed, query_norm, key_norm, rotary, out, cpu::BestIsa());
}

constexpr auto kReferenceQkvNormRope = FlatQkvNormRope<reference::QkvNormRope>;

at::Tensor CpuGeluTanh(const at::Tensor& x) { return cpu::GeluTanh(x, cpu::BestIsa()); }

at::Tensor CpuGegluTanh(const at::Tensor& x, const at::Tensor& gate) { return CpuGeluTanh(x) * gate; }

at::Tensor CpuSwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  return cpu::SwiGlu(gate, value, cpu::BestIsa());
}

at::Tensor CpuRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return cpu::RmsNorm(x, weight, eps, cpu::BestIsa());
}

at::Tensor CpuLinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return cpu::LinearProduct(x, weight, bias, cpu::BestIsa());
}

at::Tensor CpuLinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  at::Tensor product = LinearProduct(x, weight, bias);
  return cpu::GeluTanhInPlace(product, cpu::BestIsa());
}

// The reference compositions of the operators that accept a weight from PackWeight.
at::Tensor ReferenceLinearProduct(const at::Tensor& x, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias) {
  return reference::LinearProduct(x, cpu::UnpackWeight(weight, cpu::BestIsa()), bias);
}

at::Tensor ReferenceLinearGeluTanh(const at::Tensor& x, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias) {
  return reference::LinearGeluTanh(x, cpu::UnpackWeight(weight, cpu::BestIsa()), bias);
}

at::Tensor CpuWidenWeight(const QuantWeight& weight, at::ScalarType dtype) {
  return cpu::WidenWeight(weight, dtype, cpu::BestIsa());
}

at::Tensor CpuQuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias) {
  return cpu::QuantProduct(x, weight, bias, cpu::BestIsa());
}

std::tuple<at::Tensor, at::Tensor> CpuQuantizeActivations(const at::Tensor& x) {
  return cpu::QuantizeActivations(x, cpu::BestIsa());
}

at::Tensor CpuFp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                         const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  return cpu::Fp8Product(codes, row_scales, weight, bias, dtype, cpu::BestIsa());
}

// Call versions of WidenWeight, QuantProduct and Fp8Product with the arguments of the dispatcher.
template <auto kVersion>
at::Tensor FlatWidenWeight(const at::Tensor& values, const std::optional<at::Tensor>& scales,
                           const std::optional<at::Tensor>& table, int64_t type, int64_t in, int64_t scale_block,
                           at::ScalarType dtype) {
  return kVersion(QuantWeightOf(values, scales, table, type, in, scale_block), dtype);
}
template <auto kVersion>
at::Tensor FlatQuantProduct(const at::Tensor& x, const at::Tensor& values, const std::optional<at::Tensor>& scales,
                            const std::optional<at::Tensor>& table, int64_t type, int64_t in, int64_t scale_block,
                            const std::optional<at::Tensor>& bias) {
  return kVersion(x, QuantWeightOf(values, scales, table, type, in, scale_block), bias);
}
template <auto kVersion>
at::Tensor FlatFp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const at::Tensor& values,
                          const at::Tensor& scales, const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  return kVersion(
      codes, row_scales,
      QuantWeightOf(values, scales, std::nullopt, static_cast<int64_t>(QuantType::kF8E4M3), codes.size(-1), 0), bias,
      dtype);
}
using Fp8ProductSignature = decltype(FlatFp8Product<reference::Fp8Product>);
using WidenWeightSignature = decltype(FlatWidenWeight<reference::WidenWeight>);
using QuantProductSignature = decltype(FlatQuantProduct<reference::QuantProduct>);

constexpr auto kDifferentiableQuantProduct = FlatQuantProduct<gradients::QuantProduct>;

std::optional<at::Tensor> IfDefined(const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

// The kernel of the Autograd keys: calls a differentiable version if a gradient is wanted, else the device's kernel.
// Without it a device's kernel would silently cut the gradient.
template <auto kVersion, const char* kName>
struct Differentiable;

template <typename Result, typename... Args, Result (*kVersion)(Args...), const char* kName>
struct Differentiable<kVersion, kName> {
  static Result Call(Args... args) {
    if (at::GradMode::is_enabled() && (RequiresGrad(args) || ...)) return kVersion(args...);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Operator<Result(Args...), kName>().call(args...);
  }
};

}  // namespace

TORCH_LIBRARY(tessera, m) {
  m.def("attention(Tensor q, Tensor k, Tensor v, Tensor? key_bias, float scale) -> Tensor");
  m.def("attention_with_lse(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)");
  m.def("layer_norm_modulate(Tensor x, Tensor shift, Tensor scale, float eps) -> Tensor");
  m.def("layer_norm_shift(Tensor x, Tensor weight, Tensor shift, float eps) -> Tensor");
  m.def("gated_residual(Tensor x, Tensor gate, Tensor y) -> Tensor");
  m.def(
      "gated_residual_norm_modulate(Tensor x, Tensor? gate, Tensor y, Tensor? weight, Tensor? bias, Tensor? shift, "
      "Tensor? scale, float eps) -> (Tensor, Tensor)");
  m.def(
      "qkv_norm_rope(Tensor packed, Tensor? query_weight, Tensor? query_bias, float query_eps, Tensor? key_weight, "
      "Tensor? key_bias, float key_eps, Tensor? cos, Tensor? sin, Tensor(a!)? q, Tensor(b!)? k, Tensor(c!)? v) -> ()");
  m.def("gelu_tanh(Tensor x) -> Tensor");
  m.def("geglu_tanh(Tensor x, Tensor gate) -> Tensor");
  m.def("swiglu(Tensor gate, Tensor value) -> Tensor");
  m.def("silu(Tensor x) -> Tensor");
  m.def("gelu(Tensor x) -> Tensor");
  m.def("sigmoid(Tensor x) -> Tensor");
  m.def("cos(Tensor x) -> Tensor");
  m.def("sin(Tensor x) -> Tensor");
  m.def("channel_affine(Tensor x, Tensor factor, Tensor offset, bool silu) -> Tensor");
  m.def("group_moments(Tensor x, int groups) -> (Tensor, Tensor)");
  m.def("conv2d(Tensor x, Tensor weight, Tensor bias, int stride, int[] padding) -> Tensor");
  m.def("upsampled_conv2d(Tensor x, Tensor weight, Tensor bias, int first, int count) -> Tensor");
  m.def("merge_attention(Tensor read, Tensor lse, Tensor other_read, Tensor other_lse) -> (Tensor, Tensor)");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("linear_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("linear_gelu_tanh(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def(
      "widen_weight(Tensor values, Tensor? scales, Tensor? table, int type, int width, int scale_block, ScalarType "
      "dtype) "
      "-> Tensor");
  m.def(
      "quant_product(Tensor x, Tensor values, Tensor? scales, Tensor? table, int type, int width, int scale_block, "
      "Tensor? bias) -> Tensor");
  m.def("quantize_activations(Tensor x) -> (Tensor, Tensor)");
  m.def(
      "fp8_product(Tensor codes, Tensor row_scales, Tensor values, Tensor scales, Tensor? bias, ScalarType dtype) -> "
      "Tensor");
  m.def("weighted_sums(Tensor[] inputs, float[] weights, Tensor(a!)? state) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(tessera, CompositeExplicitAutograd, m) {
  m.impl("attention", reference::Attention);
  m.impl("attention_with_lse", reference::AttentionWithLse);
  m.impl("layer_norm_modulate", reference::LayerNormModulate);
  m.impl("layer_norm_shift", reference::LayerNormShift);
  m.impl("gated_residual", reference::GatedResidual);
  m.impl("gated_residual_norm_modulate", reference::GatedResidualNormModulate);
  m.impl("qkv_norm_rope", kReferenceQkvNormRope);
  m.impl("gelu_tanh", reference::GeluTanh);
  m.impl("geglu_tanh", reference::GegluTanh);
  m.impl("swiglu", reference::SwiGlu);
  m.impl("silu", reference::Silu);
  m.impl("gelu", reference::Gelu);
  m.impl("sigmoid", reference::Sigmoid);
  m.impl("cos", reference::Cos);
  m.impl("sin", reference::Sin);
  m.impl("channel_affine", reference::ChannelAffine);
  m.impl("group_moments", reference::GroupMoments);
  m.impl("conv2d", reference::Conv2d);
  m.impl("upsampled_conv2d", reference::UpsampledConv2d);
  m.impl("merge_attention", reference::MergeAttention);
  m.impl("rms_norm", reference::RmsNorm);
  m.impl("linear_product", ReferenceLinearProduct);
  m.impl("linear_gelu_tanh", ReferenceLinearGeluTanh);
  m.impl("widen_weight", FlatWidenWeight<reference::WidenWeight>);
  m.impl("quant_product", FlatQuantProduct<reference::QuantProduct>);
  m.impl("quantize_activations", reference::QuantizeActivations);
  m.impl("fp8_product", FlatFp8Product<reference::Fp8Product>);
  m.impl("weighted_sums", reference::WeightedSums);
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) {
  m.impl("attention", CpuAttention);
  m.impl("attention_with_lse", CpuAttentionWithLse);
  m.impl("layer_norm_modulate", CpuLayerNormModulate);
  m.impl("layer_norm_shift", CpuLayerNormShift);
  m.impl("gated_residual", CpuGatedResidual);
  m.impl("gated_residual_norm_modulate", CpuGatedResidualNormModulate);
  m.impl("qkv_norm_rope", FlatQkvNormRope<CpuQkvNormRope>);
  m.impl("gelu_tanh", CpuGeluTanh);
  m.impl("geglu_tanh", CpuGegluTanh);
  m.impl("swiglu", CpuSwiGlu);
  m.impl("silu", CpuSilu);
  m.impl("channel_affine", CpuChannelAffine);
  m.impl("group_moments", CpuGroupMoments);
  m.impl("conv2d", CpuConv2d);
  m.impl("upsampled_conv2d", CpuUpsampledConv2d);
  m.impl("gelu", cpu::Gelu);
  m.impl("sigmoid", cpu::Sigmoid);
  m.impl("cos", cpu::Cos);
  m.impl("sin", cpu::Sin);
  m.impl("merge_attention", cpu::MergeAttention);
  m.impl("rms_norm", CpuRmsNorm);
  m.impl("linear_product", CpuLinearProduct);
  m.impl("linear_gelu_tanh", CpuLinearGeluTanh);
  m.impl("widen_weight", FlatWidenWeight<CpuWidenWeight>);
  m.impl("quant_product", FlatQuantProduct<CpuQuantProduct>);
  m.impl("quantize_activations", CpuQuantizeActivations);
  m.impl("fp8_product", FlatFp8Product<CpuFp8Product>);
  m.impl("weighted_sums", cpu::WeightedSums);
}

TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
  m.impl("attention", Differentiable<gradients::Attention, kAttention>::Call);
  m.impl("attention_with_lse", Differentiable<reference::AttentionWithLse, kAttentionWithLse>::Call);
  m.impl("layer_norm_modulate", Differentiable<gradients::LayerNormModulate, kLayerNormModulate>::Call);
  m.impl("layer_norm_shift", Differentiable<reference::LayerNormShift, kLayerNormShift>::Call);
  m.impl("gated_residual", Differentiable<gradients::GatedResidual, kGatedResidual>::Call);
  m.impl("gated_residual_norm_modulate",
         Differentiable<gradients::GatedResidualNormModulate, kGatedResidualNormModulate>::Call);
  m.impl("qkv_norm_rope", Differentiable<kReferenceQkvNormRope, kQkvNormRope>::Call);
  m.impl("gelu_tanh", Differentiable<gradients::GeluTanh, kGeluTanh>::Call);
  m.impl("geglu_tanh", Differentiable<reference::GegluTanh, kGegluTanh>::Call);
  m.impl("swiglu", Differentiable<reference::SwiGlu, kSwiGlu>::Call);
  m.impl("silu", Differentiable<reference::Silu, kSilu>::Call);
  m.impl("gelu", Differentiable<reference::Gelu, kGelu>::Call);
  m.impl("sigmoid", Differentiable<reference::Sigmoid, kSigmoid>::Call);
  m.impl("cos", Differentiable<reference::Cos, kCos>::Call);
  m.impl("sin", Differentiable<reference::Sin, kSin>::Call);
  m.impl("channel_affine", Differentiable<reference::ChannelAffine, kChannelAffine>::Call);
  m.impl("group_moments", Differentiable<reference::GroupMoments, kGroupMoments>::Call);
  m.impl("conv2d", Differentiable<reference::Conv2d, kConv2d>::Call);
  m.impl("upsampled_conv2d", Differentiable<reference::UpsampledConv2d, kUpsampledConv2d>::Call);
  m.impl("merge_attention", Differentiable<reference::MergeAttention, kMergeAttention>::Call);
  m.impl("rms_norm", Differentiable<reference::RmsNorm, kRmsNorm>::Call);
  m.impl("linear_product", Differentiable<gradients::LinearProduct, kLinearProduct>::Call);
  m.impl("linear_gelu_tanh", Differentiable<gradients::LinearGeluTanh, kLinearGeluTanh>::Call);
  m.impl("quant_product", Differentiable<kDifferentiableQuantProduct, kQuantProduct>::Call);
  m.impl("weighted_sums", Differentiable<reference::WeightedSums, kWeightedSums>::Call);
}

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale) {
  const auto& attention = Operator<decltype(Attention), kAttention>();
  if (base::Planted("attention_scale")) return attention.call(q, k, v, key_bias, scale * 1.1);
  if (base::Planted("attention_mask")) return attention.call(q, k, v, std::nullopt, scale);
  return attention.call(q, k, v, key_bias, scale);
}

std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale) {
  return Operator<decltype(AttentionWithLse), kAttentionWithLse>().call(q, k, v, scale);
}

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  return Operator<decltype(LayerNormModulate), kLayerNormModulate>().call(x, shift, scale, eps);
}

at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps) {
  return Operator<decltype(LayerNormShift), kLayerNormShift>().call(x, weight, shift, eps);
}

at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  return Operator<decltype(GatedResidual), kGatedResidual>().call(x, gate, y);
}

std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y, const at::Tensor& shift,
                                                             const at::Tensor& scale, double eps) {
  return Operator<decltype(reference::GatedResidualNormModulate), kGatedResidualNormModulate>().call(
      x, gate, y, std::nullopt, std::nullopt, shift, scale, eps);
}

std::tuple<at::Tensor, at::Tensor> ResidualNorm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                                                const at::Tensor& bias, double eps) {
  return Operator<decltype(reference::GatedResidualNormModulate), kGatedResidualNormModulate>().call(
      x, std::nullopt, y, weight, bias, std::nullopt, std::nullopt, eps);
}

void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out) {
  const auto given = [](const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
  TORCH_CHECK(packed.dim() == 3, "qkv_norm_rope: a projection of shape ", packed.sizes());
  int64_t columns = 0;
  const auto check = [&](const at::Tensor& part, const HeadNorm& norm, const RotaryTables& turn) {
    if (!part.defined()) return;
    TORCH_CHECK(part.dim() == 5 && part.size(0) == packed.size(0) && part.size(1) == packed.size(1) &&
                    part.stride(-1) == 1 && part.scalar_type() == packed.scalar_type(),
                "qkv_norm_rope: ", packed.sizes(), " cannot be written to ", part.sizes(), " of strides ",
                part.strides());
    const int64_t channels = part.size(4);
    for (const at::Tensor& vector : {norm.weight, norm.bias}) {
      TORCH_CHECK(!vector.defined() || (vector.dim() == 1 && vector.size(0) == channels), "qkv_norm_rope: a norm of ",
                  vector.sizes(), " for heads of ", channels, " channels");
    }
    for (const at::Tensor& table : {turn.cos, turn.sin}) {
      TORCH_CHECK(
          !table.defined() || (table.dim() == 2 && table.size(0) == packed.size(1) && table.size(1) * 2 == channels),
          "qkv_norm_rope: angles ", table.sizes(), " for ", packed.size(1), " tokens of ", channels, " channels");
    }
    columns += part.size(2) * part.size(3) * channels;
  };
  check(out.q, query_norm, rotary);
  check(out.k, key_norm, rotary);
  check(out.v, {}, {});
  TORCH_CHECK(packed.size(2) == columns, "qkv_norm_rope: ", packed.sizes(), " does not have the ", columns,
              " columns needed");
  Operator<decltype(FlatQkvNormRope<reference::QkvNormRope>), kQkvNormRope>().call(
      packed, given(query_norm.weight), given(query_norm.bias), query_norm.eps, given(key_norm.weight),
      given(key_norm.bias), key_norm.eps, given(rotary.cos), given(rotary.sin), given(out.q), given(out.k),
      given(out.v));
}

at::Tensor HeadsNormRope(const at::Tensor& packed, int64_t head_dim, const HeadNorm& norm, const RotaryTables& rotary) {
  const at::Tensor out = at::empty({packed.size(0), packed.size(1), packed.size(2) / head_dim, head_dim},
                                   packed.options().requires_grad(false));
  QkvNormRope(packed, norm, {}, rotary, {.q = out.unsqueeze(2), .k = {}, .v = {}});
  return out;
}

at::Tensor GeluTanh(const at::Tensor& x) { return Operator<decltype(GeluTanh), kGeluTanh>().call(x); }

at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate) {
  TORCH_CHECK(x.sizes() == gate.sizes() && x.scalar_type() == gate.scalar_type(), "geglu_tanh: a gate of ",
              gate.sizes(), " for ", x.sizes());
  return Operator<decltype(GegluTanh), kGegluTanh>().call(x, gate);
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  TORCH_CHECK(gate.sizes() == value.sizes() && gate.scalar_type() == value.scalar_type(), "swiglu: a gate of ",
              gate.sizes(), " for ", value.sizes());
  return Operator<decltype(SwiGlu), kSwiGlu>().call(gate, value);
}

at::Tensor Silu(const at::Tensor& x) { return Operator<decltype(Silu), kSilu>().call(x); }
at::Tensor Gelu(const at::Tensor& x) { return Operator<decltype(Gelu), kGelu>().call(x); }
at::Tensor Sigmoid(const at::Tensor& x) { return Operator<decltype(Sigmoid), kSigmoid>().call(x); }
at::Tensor Cos(const at::Tensor& x) { return Operator<decltype(Cos), kCos>().call(x); }
at::Tensor Sin(const at::Tensor& x) { return Operator<decltype(Sin), kSin>().call(x); }

at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu) {
  return Operator<decltype(ChannelAffine), kChannelAffine>().call(x, factor, offset, silu);
}

std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups) {
  return Operator<decltype(GroupMoments), kGroupMoments>().call(x, groups);
}

at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding) {
  return Operator<decltype(Conv2d), kConv2d>().call(x, weight, bias, stride, padding);
}

at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count) {
  return Operator<decltype(UpsampledConv2d), kUpsampledConv2d>().call(x, weight, bias, first, count);
}

std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse) {
  return Operator<decltype(MergeAttention), kMergeAttention>().call(read, lse, other_read, other_lse);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return Operator<decltype(RmsNorm), kRmsNorm>().call(x, weight, eps);
}

at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return Operator<decltype(LinearProduct), kLinearProduct>().call(x, weight, bias);
}

at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return Operator<decltype(LinearGeluTanh), kLinearGeluTanh>().call(x, weight, bias);
}

std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state) {
  TORCH_CHECK(!inputs.empty() && (weights.size() == inputs.size() || weights.size() == 2 * inputs.size()),
              "weighted_sums: ", weights.size(), " weights of ", inputs.size(), " tensors");
  const at::ScalarType type = inputs.front().scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble, "weighted_sums: numbers of ", type);
  for (const at::Tensor& x : inputs) {
    TORCH_CHECK(x.sizes() == inputs.front().sizes() && x.scalar_type() == type, "weighted_sums: ", x.sizes(), " of ",
                x.scalar_type(), " does not match ", inputs.front().sizes(), " of ", type);
  }
  TORCH_CHECK(!state.has_value() || (state->scalar_type() == at::kLong && state->sizes() == at::IntArrayRef({2}) &&
                                     state->is_contiguous()),
              "weighted_sums: the state is not two integers");
  return Operator<decltype(WeightedSums), kWeightedSums>().call(inputs, weights, state);
}

at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype) {
  CheckQuantWeight(weight, "widen_weight");
  return Operator<WidenWeightSignature, kWidenWeight>().call(weight.values, IfDefined(weight.scales),
                                                             IfDefined(weight.table), static_cast<int64_t>(weight.type),
                                                             weight.in, weight.scale_block, dtype);
}

at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias) {
  CheckQuantWeight(weight, "quant_product");
  return Operator<QuantProductSignature, kQuantProduct>().call(
      x, weight.values, IfDefined(weight.scales), IfDefined(weight.table), static_cast<int64_t>(weight.type), weight.in,
      weight.scale_block, bias);
}

std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) > 0 && x.is_floating_point(), "quantize_activations: an input of ", x.sizes(),
              " ", x.scalar_type());
  TORCH_CHECK(!at::GradMode::is_enabled() || !x.requires_grad(), "quantize_activations has no gradient");
  return Operator<decltype(QuantizeActivations), kQuantizeActivations>().call(x);
}

at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  CheckQuantWeight(weight, "fp8_product");
  TORCH_CHECK(weight.type == QuantType::kF8E4M3, "fp8_product: a weight in ", std::string(QuantTypeName(weight.type)));
  TORCH_CHECK(codes.dim() >= 1 && codes.size(-1) == weight.in && codes.scalar_type() == at::kByte,
              "fp8_product: an input of ", codes.sizes(), " ", codes.scalar_type(), " does not fit a weight of [",
              weight.out(), ", ", weight.in, "]");
  TORCH_CHECK(row_scales.sizes() == codes.sizes().slice(0, codes.dim() - 1) && row_scales.scalar_type() == at::kFloat,
              "fp8_product: there must be an fp32 scale for each row of ", codes.sizes());
  TORCH_CHECK(!bias.has_value() || (bias->dim() == 1 && bias->size(0) == weight.out()),
              "fp8_product: the bias must be [", weight.out(), "]");
  const bool planted = base::Planted("activations_neighbours_scale");
  return Operator<Fp8ProductSignature, kFp8Product>().call(codes, planted ? row_scales.roll(1) : row_scales,
                                                           weight.values, weight.scales, bias, dtype);
}

at::Tensor PackWeight(const at::Tensor& weight) { return cpu::PackWeight(weight, cpu::BestIsa()); }

}  // namespace tessera::kernels
