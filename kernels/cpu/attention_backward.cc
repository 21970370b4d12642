// The gradient of attention. Of a head, a block of rows of queries at a time: the block's weights are computed again
// from the log-sum-exp of its rows, and exist as a whole in fp32, as do their gradients. All products by the product's
// kernels.
#include <algorithm>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"

namespace tessera::kernels::cpu {
namespace {

// A matrix [rows, columns] as the right side of products of so many columns.
class Panels {
 public:
  Panels(const ProductKernels& kernels, int64_t most_depth, int64_t most_columns)
      : kernels_(kernels), buffer_(kernels.panel_bytes(most_depth) * Count(most_columns)) {}

  // Element (k, column) lies at from[k * depth_stride + column * column_stride].
  void Pack(const float* from, int64_t depth_stride, int64_t column_stride, int64_t depth, int64_t columns) {
    depth_ = depth;
    columns_ = columns;
    for (int64_t panel = 0; panel < Count(columns); ++panel) {
      const int64_t column = panel * kernels_.columns;
      kernels_.pack({.data = from + column * column_stride,
                     .depth_stride = depth_stride,
                     .column_stride = column_stride,
                     .columns = std::min(kernels_.columns, columns - column)},
                    depth, At(panel));
    }
  }

  // out [rows, columns] of a block that was prepared.
  void Multiply(const void* prepared, int64_t rows, void* scratch, float* out) const {
    ProductTile tile{.rows = rows, .depth = depth_, .out_stride = columns_};
    for (int64_t panel = 0; panel < Count(columns_); ++panel) {
      const int64_t column = panel * kernels_.columns;
      tile.columns = std::min(kernels_.columns, columns_ - column);
      tile.out = out + column;
      kernels_.multiply(prepared, At(panel), tile, scratch);
    }
  }

 private:
  int64_t Count(int64_t columns) const { return (columns + kernels_.columns - 1) / kernels_.columns; }
  char* At(int64_t panel) const { return static_cast<char*>(buffer_.get()) + panel * kernels_.panel_bytes(depth_); }

  const ProductKernels& kernels_;
  AlignedBuffer buffer_;
  int64_t depth_ = 0, columns_ = 0;
};

// The tensors of an attention, [b, tokens, h, d] in fp32, and of one head of one image.
struct Attended {
  at::Tensor q, k, v, read, of_read;
  at::Tensor lse;   // [b, n, h]
  at::Tensor bias;  // [b, t], or undefined
  double scale;
};

const float* At(const at::Tensor& x, int64_t b, int64_t h) {
  return x.const_data_ptr<float>() + b * x.stride(0) + h * x.stride(2);
}

struct Sizes {
  int64_t rows, keys, d;
  int64_t block;  // of rows, at most
};

// In fp32; those of keys lie the other way round, as the products give them.
struct Buffers {
  explicit Buffers(const Sizes& n)
      : weights(static_cast<size_t>(n.block * n.keys)),
        of_scores(weights.size()),
        turned(static_cast<size_t>(n.block * n.d)),
        of_queries(turned.size()),
        product(static_cast<size_t>(n.d * n.keys)),
        of_keys(product.size()),
        of_values(product.size()) {}

  std::vector<float> weights, of_scores;  // [block, keys]
  std::vector<float> turned;              // [d, block]
  std::vector<float> of_queries;          // [block, d]
  std::vector<float> product;             // [d, keys]
  std::vector<float> of_keys, of_values;  // [d, keys]
};

// What one thread works in.
class HeadBackward {
 public:
  HeadBackward(const Attended& of, Isa isa)
      : of_(of),
        isa_(isa),
        kernels_(ProductFor(isa, ProductElement::kFloat)),
        n_{.rows = of.q.size(1),
           .keys = of.k.size(1),
           .d = of.q.size(3),
           .block = std::min(kProductRows, of.q.size(1))},
        by_keys_(kernels_, n_.d, n_.keys),
        by_values_(kernels_, n_.d, n_.keys),
        by_channels_(kernels_, n_.keys, n_.d),
        by_weights_(kernels_, n_.block, n_.keys),
        prepared_(std::max({kernels_.prepared_bytes(n_.block, n_.d), kernels_.prepared_bytes(n_.block, n_.keys),
                            kernels_.prepared_bytes(std::min(kProductRows, n_.d), n_.block)})),
        scratch_(std::max(
            {kernels_.scratch_bytes(n_.d), kernels_.scratch_bytes(n_.keys), kernels_.scratch_bytes(n_.block)})),
        buffers_(n_) {}

  // Writes the gradients of one head into of_q, of_k and of_v, [b, tokens, h, d] in fp32.
  void Run(int64_t b, int64_t h, const at::Tensor& of_q, const at::Tensor& of_k, const at::Tensor& of_v) {
    const float *k = At(of_.k, b, h), *v = At(of_.v, b, h);
    by_keys_.Pack(k, 1, of_.k.stride(1), n_.d, n_.keys);
    by_values_.Pack(v, 1, of_.v.stride(1), n_.d, n_.keys);
    by_channels_.Pack(k, of_.k.stride(1), 1, n_.keys, n_.d);
    std::ranges::fill(buffers_.of_keys, 0.0f);
    std::ranges::fill(buffers_.of_values, 0.0f);
    for (int64_t row = 0; row < n_.rows; row += n_.block) {
      const int64_t count = std::min(n_.block, n_.rows - row);
      OfBlock(b, h, row, count);
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(buffers_.of_queries.data() + i * n_.d, n_.d,
                    const_cast<float*>(At(of_q, b, h)) + (row + i) * of_q.stride(1));
      }
    }
    for (int64_t key = 0; key < n_.keys; ++key) {
      float* const to_k = const_cast<float*>(At(of_k, b, h)) + key * of_k.stride(1);
      float* const to_v = const_cast<float*>(At(of_v, b, h)) + key * of_v.stride(1);
      for (int64_t c = 0; c < n_.d; ++c) to_k[c] = buffers_.of_keys[static_cast<size_t>(c * n_.keys + key)];
      for (int64_t c = 0; c < n_.d; ++c) to_v[c] = buffers_.of_values[static_cast<size_t>(c * n_.keys + key)];
    }
  }

 private:
  void OfBlock(int64_t b, int64_t h, int64_t row, int64_t count) {
    const float* q = At(of_.q, b, h) + row * of_.q.stride(1);
    const float* of_read = At(of_.of_read, b, h) + row * of_.of_read.stride(1);
    const float* read = At(of_.read, b, h) + row * of_.read.stride(1);
    Multiply(q, of_.q.stride(1), count, n_.d, by_keys_, buffers_.weights.data());
    Multiply(of_read, of_.of_read.stride(1), count, n_.d, by_values_, buffers_.of_scores.data());
    const float* bias = of_.bias.defined() ? of_.bias.const_data_ptr<float>() + b * of_.bias.stride(0) : nullptr;
    for (int64_t i = 0; i < count; ++i) {
      float delta = 0;
      for (int64_t c = 0; c < n_.d; ++c)
        delta += read[i * of_.read.stride(1) + c] * of_read[i * of_.of_read.stride(1) + c];
      const float lse = of_.lse.const_data_ptr<float>()[(b * n_.rows + row + i) * of_.q.size(2) + h];
      ElementwiseFor(isa_).weights_backward(n_.keys, static_cast<float>(of_.scale), bias, lse, delta,
                                            buffers_.weights.data() + i * n_.keys,
                                            buffers_.of_scores.data() + i * n_.keys);
    }
    Multiply(buffers_.of_scores.data(), n_.keys, count, n_.keys, by_channels_, buffers_.of_queries.data());
    AddTurned(of_read, of_.of_read.stride(1), count, buffers_.weights, buffers_.of_values);
    AddTurned(q, of_.q.stride(1), count, buffers_.of_scores, buffers_.of_keys);
  }

  void Multiply(const float* x, int64_t stride, int64_t rows, int64_t depth, const Panels& panels, float* out) {
    kernels_.prepare(x, stride, rows, depth, prepared_.get());
    panels.Multiply(prepared_.get(), rows, scratch_.get(), out);
  }

  // sum [d, keys] += xᵀ y, of x [count, d] and y [count, keys].
  void AddTurned(const float* x, int64_t stride, int64_t count, const std::vector<float>& y, std::vector<float>& sum) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < n_.d; ++c) buffers_.turned[static_cast<size_t>(c * count + i)] = x[i * stride + c];
    }
    by_weights_.Pack(y.data(), n_.keys, 1, count, n_.keys);
    for (int64_t first = 0; first < n_.d; first += kProductRows) {
      const int64_t rows = std::min(kProductRows, n_.d - first);
      Multiply(buffers_.turned.data() + first * count, count, rows, count, by_weights_,
               buffers_.product.data() + first * n_.keys);
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += buffers_.product[i];
  }

  const Attended& of_;
  Isa isa_;
  const ProductKernels& kernels_;
  Sizes n_;
  Panels by_keys_, by_values_, by_channels_, by_weights_;  // right sides
  AlignedBuffer prepared_, scratch_;
  Buffers buffers_;
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionBackward(const at::Tensor& of_read, const at::Tensor& q,
                                                                 const at::Tensor& k, const at::Tensor& v,
                                                                 const std::optional<at::Tensor>& key_bias,
                                                                 const at::Tensor& read, const at::Tensor& lse,
                                                                 double scale, Isa isa) {
  const auto wide = [](const at::Tensor& x) {
    const at::Tensor values = x.to(at::kFloat);
    return values.stride(3) == 1 ? values : values.contiguous();
  };
  const Attended of{.q = wide(q),
                    .k = wide(k),
                    .v = wide(v),
                    .read = wide(read),
                    .of_read = wide(of_read),
                    .lse = lse.contiguous(),
                    .bias = key_bias.has_value() ? key_bias->to(at::kFloat).contiguous() : at::Tensor(),
                    .scale = scale};
  const auto memory = [](const at::Tensor& x) {
    return at::empty(x.sizes(), x.options().dtype(at::kFloat).memory_format(at::MemoryFormat::Contiguous));
  };
  const at::Tensor of_q = memory(q), of_k = memory(k), of_v = memory(v);
  const int64_t heads = q.size(2);
  ParallelFor(q.size(0) * heads, 1, [&](int64_t first, int64_t last) {
    HeadBackward head(of, isa);
    for (int64_t i = first; i < last; ++i) head.Run(i / heads, i % heads, of_q, of_k, of_v);
  });
  const at::ScalarType type = q.scalar_type();
  return {of_q.to(type), of_k.to(type), of_v.to(type)};
}

}  // namespace tessera::kernels::cpu
