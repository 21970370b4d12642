// The gradient of attention. A head is processed one block of keys at a time: the block's weights for all queries are
// recomputed from the queries' log-sum-exp and stored as a whole. All products use the product's kernels, in the dtype
// of the tensors with sums in fp32; the weights and the gradients of the scores are rounded to that dtype between two
// products.
#include <algorithm>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"

namespace tessera::kernels::cpu {
namespace {

// One head of one image. Consecutive rows are `stride` elements apart.
struct HeadRows {
  HeadRows(const at::Tensor& x, int64_t b, int64_t h)
      : data(static_cast<char*>(const_cast<void*>(x.const_data_ptr())) +
             (b * x.stride(0) + h * x.stride(2)) * x.element_size()),
        stride(x.stride(1)),
        size(x.element_size()) {}

  char* At(int64_t token) const { return data + token * stride * size; }

  char* data;
  int64_t stride;
  int64_t size;  // bytes per element
};

// A matrix [depth, columns] as the right operand of products.
class Panels {
 public:
  Panels(const ProductKernels& kernels, int64_t most_depth, int64_t most_columns, int64_t size)
      : kernels_(kernels), size_(size), buffer_(kernels.panel_bytes(most_depth) * Count(most_columns)) {}

  // Element (k, column) is at from[k * depth_stride + column * column_stride].
  void Pack(const char* from, int64_t depth_stride, int64_t column_stride, int64_t depth, int64_t columns) {
    depth_ = depth;
    columns_ = columns;
    for (int64_t panel = 0; panel < Count(columns); ++panel) {
      const int64_t column = panel * kernels_.columns;
      kernels_.pack({.data = from + column * column_stride * size_,
                     .depth_stride = depth_stride,
                     .column_stride = column_stride,
                     .columns = std::min(kernels_.columns, columns - column)},
                    depth, At(panel));
    }
  }

  // Computes out [rows, columns] from a prepared block. The rows of `out` are `out_stride` elements of out_size bytes
  // apart.
  void Multiply(const void* prepared, int64_t rows, void* scratch, ProductResult result, void* out,
                int64_t out_stride) const {
    const int64_t out_size = result == ProductResult::kElements ? size_ : static_cast<int64_t>(sizeof(float));
    ProductTile tile{.rows = rows, .depth = depth_, .out_stride = out_stride, .result = result};
    for (int64_t panel = 0; panel < Count(columns_); ++panel) {
      const int64_t column = panel * kernels_.columns;
      tile.columns = std::min(kernels_.columns, columns_ - column);
      tile.out = static_cast<char*>(out) + column * out_size;
      kernels_.multiply(prepared, At(panel), tile, scratch);
    }
  }

 private:
  int64_t Count(int64_t columns) const { return (columns + kernels_.columns - 1) / kernels_.columns; }
  char* At(int64_t panel) const { return static_cast<char*>(buffer_.get()) + panel * kernels_.panel_bytes(depth_); }

  const ProductKernels& kernels_;
  int64_t size_;
  AlignedBuffer buffer_;
  int64_t depth_ = 0, columns_ = 0;
};

// The tensors of an attention, [b, tokens, h, d], all of one dtype.
struct Attended {
  at::Tensor q, k, v, read, of_read;
  at::Tensor lse;   // [b, n, h] in fp32
  at::Tensor bias;  // [b, t] in fp32, or undefined
  at::Tensor of_q, of_k, of_v;
  double scale;
};

struct Sizes {
  int64_t queries, keys, d;
  int64_t block;  // most keys in a block
  int64_t size;   // bytes per element
};

// The working memory of one thread.
class HeadBackward {
 public:
  HeadBackward(const Attended& of, Isa isa)
      : of_(of),
        element_(of.q.scalar_type() == at::kFloat ? Element::kFloat : Element::kBf16),
        elementwise_(ElementwiseFor(isa)),
        kernels_(ProductFor(isa, ProductElementOf(of.q.scalar_type()).value())),
        n_{.queries = of.q.size(1),
           .keys = of.k.size(1),
           .d = of.q.size(3),
           .block = std::min(kProductRows, of.k.size(1)),
           .size = of.q.element_size()},
        by_queries_(kernels_, n_.d, n_.queries, n_.size),
        by_of_read_(kernels_, n_.d, n_.queries, n_.size),
        by_query_channels_(kernels_, n_.queries, n_.d, n_.size),
        by_of_read_channels_(kernels_, n_.queries, n_.d, n_.size),
        by_of_scores_(kernels_, n_.block, n_.queries, n_.size),
        prepared_(std::max({kernels_.prepared_bytes(n_.block, n_.d), kernels_.prepared_bytes(n_.block, n_.queries),
                            kernels_.prepared_bytes(std::min(kProductRows, n_.d), n_.block)})),
        scratch_(std::max(
            {kernels_.scratch_bytes(n_.d), kernels_.scratch_bytes(n_.queries), kernels_.scratch_bytes(n_.block)})),
        weights_(n_.block * n_.queries * n_.size),
        of_scores_(n_.block * n_.queries * n_.size),
        turned_keys_(n_.block * n_.d * n_.size),
        scores_(static_cast<size_t>(n_.block * n_.queries)),
        of_weights_(scores_.size()),
        of_queries_(static_cast<size_t>(n_.d * n_.queries)),
        lse_(static_cast<size_t>(n_.queries)),
        delta_(lse_.size()) {}

  // Writes the gradients of one head.
  void Run(int64_t b, int64_t h) {
    const HeadRows q(of_.q, b, h), of_read(of_.of_read, b, h), read(of_.read, b, h), of_q(of_.of_q, b, h);
    by_queries_.Pack(q.data, 1, q.stride, n_.d, n_.queries);
    by_of_read_.Pack(of_read.data, 1, of_read.stride, n_.d, n_.queries);
    by_query_channels_.Pack(q.data, q.stride, 1, n_.queries, n_.d);
    by_of_read_channels_.Pack(of_read.data, of_read.stride, 1, n_.queries, n_.d);
    const float* lse = of_.lse.const_data_ptr<float>() + b * n_.queries * of_.q.size(2) + h;
    for (int64_t i = 0; i < n_.queries; ++i) {
      lse_[static_cast<size_t>(i)] = lse[i * of_.q.size(2)];
      delta_[static_cast<size_t>(i)] = elementwise_.dot(element_, n_.d, read.At(i), of_read.At(i));
    }
    std::ranges::fill(of_queries_, 0.0f);
    for (int64_t key = 0; key < n_.keys; key += n_.block) OfKeys(b, h, key, std::min(n_.block, n_.keys - key));
    for (int64_t i = 0; i < n_.queries; ++i) {
      elementwise_.narrow_column(element_, n_.d, n_.queries, of_queries_.data() + i, of_q.At(i));
    }
  }

 private:
  void OfKeys(int64_t b, int64_t h, int64_t key, int64_t count) {
    const HeadRows k(of_.k, b, h), v(of_.v, b, h), of_k(of_.of_k, b, h), of_v(of_.of_v, b, h);
    Multiply(k.At(key), k.stride, count, n_.d, by_queries_, ProductResult::kSums, scores_.data(), n_.queries);
    Multiply(v.At(key), v.stride, count, n_.d, by_of_read_, ProductResult::kSums, of_weights_.data(), n_.queries);
    const float* bias = of_.bias.defined() ? of_.bias.const_data_ptr<float>() + b * of_.bias.stride(0) + key : nullptr;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = i * n_.queries;
      elementwise_.weights_backward(element_, n_.queries, static_cast<float>(of_.scale), bias != nullptr ? bias[i] : 0,
                                    lse_.data(), delta_.data(), scores_.data() + row, of_weights_.data() + row,
                                    Row(weights_, i), Row(of_scores_, i));
    }
    Multiply(weights_.get(), n_.queries, count, n_.queries, by_of_read_channels_, ProductResult::kElements,
             of_v.At(key), of_v.stride);
    Multiply(of_scores_.get(), n_.queries, count, n_.queries, by_query_channels_, ProductResult::kElements,
             of_k.At(key), of_k.stride);
    AddOfQueries(k.At(key), k.stride, count);
  }

  char* Row(const AlignedBuffer& matrix, int64_t row) const {
    return static_cast<char*>(matrix.get()) + row * n_.queries * n_.size;
  }

  void Multiply(const void* x, int64_t stride, int64_t rows, int64_t depth, const Panels& panels, ProductResult result,
                void* out, int64_t out_stride) {
    kernels_.prepare(x, stride, rows, depth, prepared_.get());
    panels.Multiply(prepared_.get(), rows, scratch_.get(), result, out, out_stride);
  }

  // of_queries [d, queries] += kᵀ of_scores, for `count` keys.
  void AddOfQueries(const char* k, int64_t stride, int64_t count) {
    const auto turn = [&]<typename T>(const T* from) {
      T* const to = static_cast<T*>(turned_keys_.get());
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t c = 0; c < n_.d; ++c) to[c * count + i] = from[i * stride + c];
      }
    };
    if (element_ == Element::kFloat) {
      turn(reinterpret_cast<const uint32_t*>(k));
    } else {
      turn(reinterpret_cast<const uint16_t*>(k));
    }
    by_of_scores_.Pack(Row(of_scores_, 0), n_.queries, 1, count, n_.queries);
    for (int64_t first = 0; first < n_.d; first += kProductRows) {
      Multiply(static_cast<char*>(turned_keys_.get()) + first * count * n_.size, count,
               std::min(kProductRows, n_.d - first), count, by_of_scores_, ProductResult::kAddedSums,
               of_queries_.data() + first * n_.queries, n_.queries);
    }
  }

  const Attended& of_;
  Element element_;
  const ElementwiseKernels& elementwise_;
  const ProductKernels& kernels_;
  Sizes n_;
  // Right operands.
  Panels by_queries_, by_of_read_;                  // [d, queries]
  Panels by_query_channels_, by_of_read_channels_;  // [queries, d]
  Panels by_of_scores_;                             // [block, queries]
  AlignedBuffer prepared_, scratch_;
  AlignedBuffer weights_, of_scores_;       // [block, queries]
  AlignedBuffer turned_keys_;               // [d, block]
  std::vector<float> scores_, of_weights_;  // [block, queries]
  std::vector<float> of_queries_;           // [d, queries]
  std::vector<float> lse_, delta_;          // [queries]
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionBackward(const at::Tensor& of_read, const at::Tensor& q,
                                                                 const at::Tensor& k, const at::Tensor& v,
                                                                 const std::optional<at::Tensor>& key_bias,
                                                                 const at::Tensor& read, const at::Tensor& lse,
                                                                 double scale, Isa isa) {
  const auto rows = [&](const at::Tensor& x) {
    const at::Tensor values = x.to(q.scalar_type());
    return values.stride(3) == 1 ? values : values.contiguous();
  };
  const auto memory = [](const at::Tensor& x) {
    return at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  };
  const Attended of{.q = rows(q),
                    .k = rows(k),
                    .v = rows(v),
                    .read = rows(read),
                    .of_read = rows(of_read),
                    .lse = lse.contiguous(),
                    .bias = key_bias.has_value() ? key_bias->to(at::kFloat).contiguous() : at::Tensor(),
                    .of_q = memory(q),
                    .of_k = memory(k),
                    .of_v = memory(v),
                    .scale = scale};
  const int64_t heads = q.size(2);
  ParallelFor(q.size(0) * heads, 1, [&](int64_t first, int64_t last) {
    HeadBackward head(of, isa);
    for (int64_t i = first; i < last; ++i) head.Run(i / heads, i % heads);
  });
  return {of.of_q, of.of_k, of.of_v};
}

}  // namespace tessera::kernels::cpu
