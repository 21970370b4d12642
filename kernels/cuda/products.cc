#include <ATen/Context.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/operators.h"
#include "kernels/cuda/redispatch.h"

namespace tessera::kernels::cuda {
namespace {

// Disables kernels of LibTorch's attention during its lifetime. Only one thread of a worker computes.
class AttentionWithout final {
 public:
  enum Kernels { kCudnn, kAllButExact };

  explicit AttentionWithout(Kernels kernels) {
    at::Context& context = at::globalContext();
    context.setSDPUseCuDNN(false);
    if (kernels == kCudnn) return;
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
  }
  ~AttentionWithout() {
    at::Context& context = at::globalContext();
    context.setSDPUseCuDNN(cudnn_);
    context.setSDPUseFlash(flash_);
    context.setSDPUseMemEfficient(memory_efficient_);
  }
  AttentionWithout(const AttentionWithout&) = delete;
  AttentionWithout& operator=(const AttentionWithout&) = delete;

 private:
  const bool cudnn_ = at::globalContext().userEnabledCuDNNSDP();
  const bool flash_ = at::globalContext().userEnabledFlashSDP();
  const bool memory_efficient_ = at::globalContext().userEnabledMemEfficientSDP();
};

// Number of queries per call, such that their scores take at most 1 GiB.
int64_t QueriesAtOnce(const at::Tensor& q, const at::Tensor& k) {
  constexpr int64_t kMaxScoreBytes = int64_t{1} << 30;
  const int64_t of_query = q.size(0) * q.size(2) * k.size(1) * static_cast<int64_t>(q.element_size());
  return std::max<int64_t>(1, kMaxScoreBytes / std::max<int64_t>(1, of_query));
}

}  // namespace

// In fp32 and fp64 the scores are products of that type, because LibTorch's fast kernels multiply fp32 in TF32's 10
// bits. cuDNN makes a plan for every pair of lengths, which takes tens to hundreds of milliseconds; if the number of
// keys is the length of the prompt, nearly every prompt would need one.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& key_bias,
                     double scale) {
  const auto attend = [&](const at::Tensor& queries) {
    return ReferenceOf<Attention>::Call("tessera::attention", queries, k, v, key_bias, scale);
  };
  if (q.scalar_type() == at::kBFloat16) {
    if (!key_bias.has_value() && q.size(1) == k.size(1)) return attend(q);
    const AttentionWithout cudnn(AttentionWithout::kCudnn);
    return attend(q);
  }
  const AttentionWithout fast(AttentionWithout::kAllButExact);
  const int64_t at_once = QueriesAtOnce(q, k);
  if (q.size(1) <= at_once) return attend(q);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& queries : q.split(at_once, 1)) parts.push_back(attend(queries));
  return at::cat(parts, 1);
}

namespace {

// Returns whether this GPU prefers cuDNN's attention, as set when the plug-in opened the GPU.
bool PrefersCudnn() { return at::globalContext().sDPPriorityOrder()[0] == at::SDPBackend::cudnn_attention; }

}  // namespace

std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale) {
  constexpr int64_t kMaxHeadDim = 256;
  const int64_t head_dim = q.size(3);
  if (q.scalar_type() != at::kBFloat16 || head_dim % 8 != 0 || head_dim > kMaxHeadDim || q.numel() == 0 ||
      k.numel() == 0) {
    return ReferenceOf<AttentionWithLse>::Call("tessera::attention_with_lse", q, k, v, scale);
  }
  const at::Tensor queries = q.transpose(1, 2), keys = k.transpose(1, 2), values = v.transpose(1, 2);
  at::Tensor read, lse;  // [b, h, n, d] and [b, h, n], in some versions [b, h, n, 1]
  if (PrefersCudnn() && head_dim <= 128) {
    std::tie(read, lse, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore) =
        at::_scaled_dot_product_cudnn_attention(queries, keys, values, /*attn_bias=*/std::nullopt,
                                                /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                /*return_debug_mask=*/false, scale);
  } else {
    std::tie(read, lse, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore) =
        at::_scaled_dot_product_flash_attention(queries, keys, values, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                /*return_debug_mask=*/false, scale);
  }
  if (lse.dim() == 4) lse = lse.squeeze(-1);
  return {read.transpose(1, 2), lse.transpose(1, 2)};
}

// cuBLASLt adds the bias and applies the activation while it writes the product. In fp32 and fp64 the activation is a
// separate kernel, because the library's is not accurate enough for them.
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  const int64_t in = x.size(-1);
  if (x.scalar_type() != at::kBFloat16 || !bias.has_value() || weight.dim() != 2 || x.numel() == 0) {
    return ReferenceOf<LinearGeluTanh>::Call("tessera::linear_gelu_tanh", x, weight, bias);
  }
  const at::Tensor rows = x.reshape({x.numel() / in, in});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::_addmm_activation(*bias, rows, weight.t(), /*beta=*/1, /*alpha=*/1, /*use_gelu=*/true).view(sizes);
}

namespace {

// Returns whether LibTorch multiplies e4m3 on this GPU.
bool MultipliesFp8(at::Device device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()) != cudaSuccess) {
    return false;
  }
  return major > 8 || (major == 8 && minor >= 9);
}

}  // namespace

at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const at::Tensor& values,
                      const at::Tensor& scales, const OptionalTensor& bias, at::ScalarType dtype) {
  constexpr int64_t kWhole = 16;
  const int64_t in = codes.size(-1), out = values.size(0);
  if (dtype != at::kBFloat16 || in % kWhole != 0 || out % kWhole != 0 || codes.numel() == 0 ||
      !values.is_contiguous() || (bias.has_value() && bias->scalar_type() != dtype) || !MultipliesFp8(codes.device())) {
    return WidenedFp8Product(codes, row_scales, values, scales, bias, dtype);
  }
  std::vector<int64_t> shape = codes.sizes().vec();
  shape.back() = out;
  return at::_scaled_mm(codes.reshape({-1, in}).view(at::kFloat8_e4m3fn), values.view(at::kFloat8_e4m3fn).t(),
                        row_scales.reshape({-1, 1}), scales.reshape({1, -1}), bias, /*scale_result=*/std::nullopt,
                        dtype, /*use_fast_accum=*/false)
      .view(shape);
}

}  // namespace tessera::kernels::cuda
