#include "kernels/cpu/product.h"

#include <algorithm>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {

const ProductKernels& ProductFor(Isa isa, ProductElement element) {
  const bool is_avx512 = isa > Isa::kAvx2;
  if (element == ProductElement::kDouble) {
    return isa == Isa::kBaseline ? kProductDoubleBaseline : is_avx512 ? kProductDoubleAvx512 : kProductDoubleAvx2;
  }
  if (element == ProductElement::kFloat) {
    static constexpr const ProductKernels* kFloat[] = {&kProductFloatBaseline, &kProductFloatAvx2, &kProductFloatAvx512,
                                                       &kProductFloatAvx512, &kProductFloatAmx};
    return *kFloat[static_cast<size_t>(isa)];
  }
  static constexpr const ProductKernels* kBf16[] = {&kProductBf16Baseline, &kProductBf16Avx2, &kProductBf16Avx512,
                                                    &kProductBf16Avx512Bf16, &kProductBf16Amx};
  return *kBf16[static_cast<size_t>(isa)];
}

namespace {

const ProductKernels& KernelsOf(const at::Tensor& x, Isa isa) {
  return ProductFor(isa, ProductElementOf(x.scalar_type()).value());
}

int64_t Panels(int64_t columns, const ProductKernels& kernels) {
  return (columns + kernels.columns - 1) / kernels.columns;
}

// A packed weight has the shape [1, out, in]; its storage holds panels, not elements in index order.
bool IsPacked(const at::Tensor& weight) { return weight.dim() == 3; }

at::Tensor Pack(const at::Tensor& weight, const ProductKernels& kernels) {
  const int64_t out = weight.size(0), in = weight.size(1), panels = Panels(out, kernels);
  const int64_t panel_bytes = kernels.panel_bytes(in), size = weight.element_size();
  const at::Tensor storage = at::empty({std::max<int64_t>(panels * panel_bytes / size, out * in)}, weight.options());
  const char* from = static_cast<const char*>(weight.const_data_ptr());
  char* to = static_cast<char*>(storage.mutable_data_ptr());
  ParallelFor(panels, 1, [&](int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; ++panel) {
      const int64_t column = panel * kernels.columns;
      kernels.pack({.data = from + column * weight.stride(0) * size,
                    .depth_stride = weight.stride(1),
                    .column_stride = weight.stride(0),
                    .columns = std::min(kernels.columns, out - column)},
                   in, to + panel * panel_bytes);
    }
  });
  return storage.narrow(0, 0, out * in).view({1, out, in});
}

}  // namespace

std::optional<ProductElement> ProductElementOf(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return ProductElement::kDouble;
    case at::kFloat:
      return ProductElement::kFloat;
    case at::kBFloat16:
      return ProductElement::kBf16;
    default:
      return std::nullopt;
  }
}

at::Tensor PackWeight(const at::Tensor& weight, Isa isa) {
  const bool packs = weight.is_cpu() && weight.layout() == at::kStrided && ProductElementOf(weight.scalar_type()) &&
                     weight.dim() == 2 && weight.numel() > 0;
  return packs ? Pack(weight.detach(), KernelsOf(weight, isa)) : weight;
}

at::Tensor UnpackWeight(const at::Tensor& weight, Isa isa) {
  if (!IsPacked(weight)) return weight;
  const ProductKernels& kernels = KernelsOf(weight, isa);
  const int64_t out = weight.size(1), in = weight.size(2), size = weight.element_size();
  at::Tensor plain = at::empty({out, in}, weight.options());
  for (int64_t panel = 0; panel < Panels(out, kernels); ++panel) {
    const int64_t column = panel * kernels.columns;
    kernels.unpack(static_cast<const char*>(weight.const_data_ptr()) + panel * kernels.panel_bytes(in), in,
                   std::min(kernels.columns, out - column),
                   static_cast<char*>(plain.mutable_data_ptr()) + column * in * size);
  }
  return plain;
}

at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                         Isa isa) {
  const bool packed = IsPacked(weight);
  const int64_t out = weight.size(packed ? 1 : 0), in = weight.size(packed ? 2 : 1);
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == in && x.scalar_type() == weight.scalar_type(),
              "linear_product: an input of ", x.sizes(), " ", x.scalar_type(), " does not fit a weight of [", out, ", ",
              in, "] ", weight.scalar_type());
  TORCH_CHECK(!bias.has_value() || (bias->dim() == 1 && bias->size(0) == out && bias->scalar_type() == x.scalar_type()),
              "linear_product: the bias must be [", out, "] of the weight's type");
  if (!ProductElementOf(x.scalar_type())) return reference::LinearProduct(x, UnpackWeight(weight, isa), bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out;
  at::Tensor result = at::empty(shape, x.options().memory_format(at::MemoryFormat::Contiguous));
  if (result.numel() == 0) return result;
  const ProductKernels& kernels = KernelsOf(x, isa);
  const at::Tensor panels = packed ? weight : Pack(weight, kernels);
  const at::Tensor rows = x.contiguous();
  const at::Tensor column_bias = bias.has_value() ? bias->contiguous() : at::Tensor();

  const int64_t count = result.numel() / out, size = x.element_size(), panel_bytes = kernels.panel_bytes(in);
  // A piece of work is a block of rows and a run of panels. Its size does not affect the result; pieces are small
  // enough for an even distribution over threads.
  constexpr int64_t kPieces = 64;
  const ProductBlocks blocks(kernels, count, in);
  const int64_t panel_count = Panels(out, kernels), scratch_bytes = kernels.scratch_bytes(blocks.slice());
  const int64_t runs = std::clamp<int64_t>((kPieces + blocks.count() - 1) / blocks.count(), 1, panel_count);
  const auto first_panel_of = [&](int64_t run) { return panel_count * run / runs; };
  const bool is_sliced = blocks.slices() > 1;
  ShareOut(blocks.count() * runs, [&](const TakePieces& take) {
    const int64_t waiting = is_sliced ? panel_count : 1;
    const AlignedBuffer prepared(kernels.prepared_bytes(blocks.most_rows(), blocks.slice()));
    const AlignedBuffer scratch(waiting * scratch_bytes);
    int64_t prepared_block = -1;
    // With slices, each slice of a block is prepared once for all pieces that are taken together.
    const int64_t most = is_sliced ? blocks.count() * runs : 1;
    for (PieceShares::Range taken = take(most); !taken.empty(); taken = take(most)) {
      for (int64_t piece = taken.first, next = 0; piece < taken.last; piece = next) {
        const int64_t block = piece / runs, row = blocks.first_row(block);
        next = std::min(taken.last, (block + 1) * runs);
        const int64_t first_panel = first_panel_of(piece - block * runs);
        const int64_t last_panel = first_panel_of(next - block * runs);
        for (int64_t slice = 0; slice < blocks.slices(); ++slice) {
          const int64_t k = blocks.first_depth(slice);
          ProductTile tile{.rows = blocks.rows(block),
                           .depth = blocks.depth(slice),
                           .out_stride = out,
                           .is_first_slice = slice == 0,
                           .is_last_slice = slice + 1 == blocks.slices()};
          if (is_sliced || prepared_block != block) {
            kernels.prepare(static_cast<const char*>(rows.const_data_ptr()) + (row * in + k) * size, in, tile.rows,
                            tile.depth, prepared.get());
            prepared_block = block;
          }
          for (int64_t panel = first_panel; panel < last_panel; ++panel) {
            const int64_t column = panel * kernels.columns;
            tile.columns = std::min(kernels.columns, out - column);
            tile.out = static_cast<char*>(result.mutable_data_ptr()) + (row * out + column) * size;
            if (column_bias.defined()) {
              tile.column_bias = static_cast<const char*>(column_bias.const_data_ptr()) + column * size;
            }
            kernels.multiply(
                prepared.get(),
                static_cast<const char*>(panels.const_data_ptr()) + panel * panel_bytes + kernels.panel_bytes(k), tile,
                static_cast<char*>(scratch.get()) + (panel - first_panel) % waiting * scratch_bytes);
          }
        }
      }
    }
  });
  return result;
}

}  // namespace tessera::kernels::cpu
