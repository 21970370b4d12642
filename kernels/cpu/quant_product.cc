// The products with a quantized weight: a few panels of the weight at a time are widened and packed, and multiplied
// with all rows of x.
#include <algorithm>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/widen.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {
namespace {

// Columns of the weight that are widened together. A multiple of every form's block and of the parts in which any
// kernel packs the depth.
constexpr int64_t kWideColumns = 512;
constexpr int64_t kRowsAhead = 4;
constexpr int64_t kWideStride = kWideColumns + 32;  // rows whole pages apart would compete for few lines of the cache

// The most memory for rows of x as the kernels multiply them. More rows are multiplied one part after another, each
// with the whole weight.
constexpr int64_t kMostPreparedBytes = int64_t{64} << 20;

constexpr int64_t RoundedUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Widens and packs panels of a weight for one thread.
class PanelPacker {
 public:
  PanelPacker(const QuantRows& rows, int64_t out, const ProductKernels& kernels, const WidenKernels& widen,
              ProductElement element)
      : rows_(rows),
        out_(out),
        kernels_(kernels),
        widen_(widen),
        element_(element),
        wide_(kernels.columns * kWideStride * static_cast<int64_t>(sizeof(double))),
        floats_(kWideColumns * static_cast<int64_t>(sizeof(float))) {}

  void Pack(int64_t panel, void* to) const {
    const int64_t first = panel * kernels_.columns, columns = std::min(kernels_.columns, out_ - first);
    for (int64_t k = 0; k < rows_.columns; k += kWideColumns) {
      const int64_t depth = std::min(kWideColumns, rows_.columns - k);
      for (int64_t c = 0; c < columns; ++c) {
        Prefetch(first + c + kRowsAhead, k, depth);
        Widen(RunOf(rows_, first + c, k, depth), c * kWideStride);
      }
      kernels_.pack({.data = wide_.get(), .depth_stride = 1, .column_stride = kWideStride, .columns = columns}, depth,
                    static_cast<char*>(to) + kernels_.panel_bytes(k));
    }
  }

 private:
  // The processor does not foresee that the next row's part follows.
  void Prefetch(int64_t row, int64_t k, int64_t depth) const {
    if (row >= out_) return;
    const uint8_t* bytes = RunOf(rows_, row, k, depth).bytes;
    for (int64_t i = 0; i < RowBytes(rows_.type, depth); i += 64) __builtin_prefetch(bytes + i);
  }

  void Widen(const QuantRun& run, int64_t at) const {
    switch (element_) {
      case ProductElement::kBf16:
        return widen_.to_bf16(run, static_cast<uint16_t*>(wide_.get()) + at);
      case ProductElement::kFloat:
        return widen_.to_float(run, static_cast<float*>(wide_.get()) + at);
      case ProductElement::kDouble: {
        float* values = static_cast<float*>(floats_.get());
        widen_.to_float(run, values);
        std::copy(values, values + run.count, static_cast<double*>(wide_.get()) + at);
      }
    }
  }

  const QuantRows& rows_;
  const int64_t out_;
  const ProductKernels& kernels_;
  const WidenKernels& widen_;
  const ProductElement element_;
  const AlignedBuffer wide_, floats_;
};

// A part of the rows of x, prepared for the kernels block by block and slice by slice.
class PreparedRows {
 public:
  // `rows` [count, depth], dense.
  PreparedRows(const ProductKernels& kernels, const char* rows, int64_t element_size, int64_t count, int64_t depth)
      : blocks_(kernels, count, depth),
        step_(RoundedUp(kernels.prepared_bytes(blocks_.most_rows(), blocks_.slice()), 64)),
        prepared_(blocks_.count() * blocks_.slices() * step_) {
    ParallelFor(blocks_.count() * blocks_.slices(), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t block = i / blocks_.slices(), slice = i % blocks_.slices();
        kernels.prepare(rows + (blocks_.first_row(block) * depth + blocks_.first_depth(slice)) * element_size, depth,
                        blocks_.rows(block), blocks_.depth(slice), At(block, slice));
      }
    });
  }

  const ProductBlocks& blocks() const { return blocks_; }
  void* At(int64_t block, int64_t slice) const {
    return static_cast<char*>(prepared_.get()) + (block * blocks_.slices() + slice) * step_;
  }

 private:
  const ProductBlocks blocks_;
  const int64_t step_;
  const AlignedBuffer prepared_;
};

// Panels that a thread packs before it multiplies them: so many that reading the rows of x again is not the bottleneck,
// and few enough for the cache and for an even distribution over threads. Their number does not affect the result.
int64_t PanelsAtOnce(int64_t panels, int64_t panel_bytes) {
  constexpr int64_t kBytes = int64_t{4} << 20, kPiecesOfThread = 4;
  const int64_t fair = panels / (kPiecesOfThread * AvailableThreads());
  return std::max<int64_t>(1, std::min(fair, kBytes / std::max<int64_t>(1, panel_bytes)));
}

// What is multiplied, and where the result goes: `out` [count, columns of the result], dense.
struct RowsProduct {
  const char* rows = nullptr;  // [count, weight.columns] of `element`, dense
  int64_t count = 0;
  const QuantRows& weight;
  int64_t columns = 0;  // rows of the weight
  ProductElement element = ProductElement::kFloat;
  int64_t element_size = 0;
  const char* bias = nullptr;  // [columns] of `element`; null: none
  char* out = nullptr;
  ProductResult result = ProductResult::kElements;
  int64_t result_size = 0;
};

void Multiply(const RowsProduct& product, Isa isa) {
  const int64_t out = product.columns, in = product.weight.columns, size = product.element_size;
  const ProductKernels& kernels = ProductFor(isa, product.element);
  const int64_t panels = (out + kernels.columns - 1) / kernels.columns, panel_bytes = kernels.panel_bytes(in);
  const int64_t at_once = PanelsAtOnce(panels, panel_bytes);
  const int64_t prepared_row = std::max<int64_t>(1, kernels.prepared_bytes(kProductRows, in) / kProductRows);
  const int64_t rows_at_once = std::max(kernels.most_rows(in), kMostPreparedBytes / prepared_row);
  for (int64_t first_row = 0; first_row < product.count; first_row += rows_at_once) {
    const PreparedRows prepared(kernels, product.rows + first_row * in * size, size,
                                std::min(rows_at_once, product.count - first_row), in);
    const ProductBlocks& blocks = prepared.blocks();
    const int64_t scratch_bytes = kernels.scratch_bytes(blocks.slice());
    ShareOut((panels + at_once - 1) / at_once, [&](const TakePieces& take) {
      const PanelPacker packer(product.weight, out, kernels, WidenFor(isa), product.element);
      const AlignedBuffer packed(at_once * panel_bytes), scratch((blocks.slices() > 1 ? at_once : 1) * scratch_bytes);
      for (PieceShares::Range taken = take(1); !taken.empty(); taken = take(1)) {
        const int64_t first = taken.first * at_once, last = std::min(panels, first + at_once);
        for (int64_t panel = first; panel < last; ++panel) {
          packer.Pack(panel, static_cast<char*>(packed.get()) + (panel - first) * panel_bytes);
        }
        for (int64_t block = 0; block < blocks.count(); ++block) {
          for (int64_t slice = 0; slice < blocks.slices(); ++slice) {
            ProductTile tile{.rows = blocks.rows(block),
                             .depth = blocks.depth(slice),
                             .out_stride = out,
                             .result = product.result,
                             .is_first_slice = slice == 0,
                             .is_last_slice = slice + 1 == blocks.slices()};
            for (int64_t panel = first; panel < last; ++panel) {
              const int64_t column = panel * kernels.columns, row = first_row + blocks.first_row(block);
              tile.columns = std::min(kernels.columns, out - column);
              tile.out = product.out + (row * out + column) * product.result_size;
              if (product.bias != nullptr) tile.column_bias = product.bias + column * size;
              kernels.multiply(
                  prepared.At(block, slice),
                  static_cast<const char*>(packed.get()) + (panel - first) * panel_bytes +
                      kernels.panel_bytes(blocks.first_depth(slice)),
                  tile,
                  static_cast<char*>(scratch.get()) + (blocks.slices() > 1 ? (panel - first) * scratch_bytes : 0));
            }
          }
        }
      }
    });
  }
}

// Returns the codes' numbers, which bf16 holds exactly.
at::Tensor NumbersOf(const at::Tensor& codes, Isa isa) {
  const float one = 1;
  const at::Tensor numbers = at::empty(codes.sizes(), at::kBFloat16);
  const QuantRun whole{
      .type = QuantType::kF8E4M3, .bytes = codes.const_data_ptr<uint8_t>(), .count = codes.numel(), .scales = &one};
  uint16_t* to = static_cast<uint16_t*>(numbers.mutable_data_ptr());
  ParallelFor(whole.count, kGrainElements, [&](int64_t first, int64_t last) {
    QuantRun run = whole;
    run.bytes += first;
    run.count = last - first;
    WidenFor(isa).to_bf16(run, to + first);
  });
  return numbers;
}

}  // namespace

at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype, Isa isa) {
  const WidenKernels& widen = WidenFor(isa);
  const bool is_bf16 = dtype == at::kBFloat16;
  const at::Tensor wide = at::empty({weight.out(), weight.in}, is_bf16 ? at::kBFloat16 : at::kFloat);
  const QuantRows rows = RowsOf(weight);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, weight.in));
  ParallelFor(weight.out(), grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const QuantRun run = RunOf(rows, row, 0, weight.in);
      if (is_bf16) {
        widen.to_bf16(run, static_cast<uint16_t*>(wide.mutable_data_ptr()) + row * weight.in);
      } else {
        widen.to_float(run, static_cast<float*>(wide.mutable_data_ptr()) + row * weight.in);
      }
    }
  });
  return wide.to(dtype);
}

at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias,
                        Isa isa) {
  const int64_t out = weight.out(), in = weight.in;
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == in, "quant_product: an input of ", x.sizes(), " does not fit a weight of [",
              out, ", ", in, "]");
  TORCH_CHECK(!bias.has_value() || (bias->dim() == 1 && bias->size(0) == out && bias->scalar_type() == x.scalar_type()),
              "quant_product: the bias must be [", out, "] of the type of x");
  const std::optional<ProductElement> element = ProductElementOf(x.scalar_type());
  if (!element) return reference::LinearProduct(x, WidenWeight(weight, x.scalar_type(), isa), bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out;
  at::Tensor result = at::empty(shape, x.options().memory_format(at::MemoryFormat::Contiguous));
  if (result.numel() == 0) return result;
  const at::Tensor rows = x.contiguous();
  const at::Tensor column_bias = bias.has_value() ? bias->contiguous() : at::Tensor();
  const QuantRows quantized = RowsOf(weight);
  Multiply({.rows = static_cast<const char*>(rows.const_data_ptr()),
            .count = result.numel() / out,
            .weight = quantized,
            .columns = out,
            .element = *element,
            .element_size = x.element_size(),
            .bias = column_bias.defined() ? static_cast<const char*>(column_bias.const_data_ptr()) : nullptr,
            .out = static_cast<char*>(result.mutable_data_ptr()),
            .result_size = x.element_size()},
           isa);
  return result;
}

at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype, Isa isa) {
  const int64_t out = weight.out();
  std::vector<int64_t> shape = codes.sizes().vec();
  shape.back() = out;
  const at::Tensor sums = at::empty(shape, codes.options().dtype(at::kFloat));
  if (sums.numel() == 0) return sums.to(dtype);
  const std::vector<float> ones(static_cast<size_t>(out), 1.0f);
  QuantRows numbers_of_weight = RowsOf(weight);
  numbers_of_weight.scales = ones.data();
  const int64_t count = sums.numel() / out;
  float* const to = sums.mutable_data_ptr<float>();
  const at::Tensor numbers = NumbersOf(codes.contiguous(), isa);
  Multiply({.rows = static_cast<const char*>(numbers.const_data_ptr()),
            .count = count,
            .weight = numbers_of_weight,
            .columns = out,
            .element = ProductElement::kBf16,
            .element_size = numbers.element_size(),
            .out = reinterpret_cast<char*>(to),
            .result = ProductResult::kSums,
            .result_size = sums.element_size()},
           isa);
  const at::Tensor of_rows = row_scales.contiguous(),
                   wide_bias = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
  const float* const row_scale = of_rows.const_data_ptr<float>();
  const float* const column_scale = weight.scales.const_data_ptr<float>();
  const float* const column_bias = wide_bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr;
  ParallelFor(count, std::max<int64_t>(1, kGrainElements / out), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* const y = to + row * out;
      for (int64_t c = 0; c < out; ++c) y[c] = y[c] * row_scale[row] * column_scale[c];
      for (int64_t c = 0; column_bias != nullptr && c < out; ++c) y[c] += column_bias[c];
    }
  });
  return sums.to(dtype);
}

}  // namespace tessera::kernels::cpu
