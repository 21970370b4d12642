// CPU versions of the matrix product x Wᵀ. Each element of the result is one chain of fused multiply-adds (baseline: of
// products and sums; tiles: of sums of 32) over the depth in ascending order. The chain does not depend on the number
// of rows, a row's position, the number of threads or the division into blocks: a row of the result depends on that row
// of x alone.
//
// The weight is packed into panels of `columns` of its rows, which are columns of the result. A block is at most
// most_rows(depth) rows of x, which `prepare` rearranges once; it is then multiplied by any number of panels.
//
// A version may cut a long depth into slices. Then a block covers `slice_depth` of the depth, and each panel keeps its
// partial sums in its own scratch memory until the next slice.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace tessera::kernels::cpu {

constexpr int64_t kProductRows = 96;

enum class ProductElement { kDouble, kFloat, kBf16 };

// Element (k, column) of a panel's source is at k * depth_stride + column * column_stride; strides are in elements.
struct PanelSource {
  const void* data;
  int64_t depth_stride;
  int64_t column_stride;
  int64_t columns;  // further columns are packed as zeros
};

// What is written: elements, the sums themselves, or the sums added to the values in `out`. Sums are in fp64 if the
// elements are, else in fp32.
enum class ProductResult { kElements, kSums, kAddedSums };

// The rows of one block times one panel. At most one of the biases is set; biases have the element type.
struct ProductTile {
  int64_t rows;
  int64_t columns;  // valid columns of the panel
  int64_t depth;
  const void* column_bias;  // [columns], or null
  const void* row_bias;     // [rows], or null
  void* out;                // [rows][columns] of `result`
  int64_t out_stride;       // between rows of `out`
  ProductResult result = ProductResult::kElements;
  bool is_first_slice = true;  // else sums continue from those in the scratch
  bool is_last_slice = true;   // else sums stay in the scratch and `out` is not written
};

// The slice_depth of a version that never slices.
inline int64_t WholeDepth(int64_t depth) { return depth; }

// The version for one instruction set and one element type. Buffers are 64-byte aligned.
struct ProductKernels {
  int64_t columns;                                         // of a panel
  int64_t tile_rows;                                       // rows per step of `multiply`
  int64_t (*slice_depth)(int64_t depth);                   // of all slices but the last; >= `depth`: no slices
  int64_t (*most_rows)(int64_t depth);                     // of a block; whole tiles, at least kProductRows
  int64_t (*panel_bytes)(int64_t depth);                   // of one packed panel; also the offset of a slice in it
  int64_t (*prepared_bytes)(int64_t rows, int64_t depth);  // of a prepared block
  int64_t (*scratch_bytes)(int64_t depth);                 // of one thread or, with slices, of one panel
  void (*pack)(const PanelSource&, int64_t depth, void* panel);
  // Packs a whole panel whose elements k are adjacent in memory, starting at data + offsets[k] elements.
  void (*pack_rows)(const void* data, const int64_t* offsets, int64_t depth, void* panel);
  void (*unpack)(const void* panel, int64_t depth, int64_t columns, void* weight);  // weight [columns][depth]
  void (*prepare)(const void* x, int64_t stride, int64_t rows, int64_t depth, void* prepared);
  void (*multiply)(const void* prepared, const void* panel, const ProductTile&, void* scratch);
};

// Divides a product's rows into blocks, as evenly as whole tiles allow, and its depth into slices. The division depends
// only on the size of the product.
class ProductBlocks {
 public:
  ProductBlocks(const ProductKernels& kernels, int64_t rows, int64_t depth)
      : rows_(rows),
        depth_(depth),
        slice_(depth < kernels.slice_depth(depth) ? depth : kernels.slice_depth(depth)),
        tile_rows_(kernels.tile_rows),
        most_rows_(kernels.most_rows(slice_)),
        count_((rows + most_rows_ - 1) / most_rows_) {}

  int64_t count() const { return count_; }
  int64_t most_rows() const { return rows_ < most_rows_ ? rows_ : most_rows_; }
  int64_t first_row(int64_t block) const {
    const int64_t row = (rows_ * block / count_ + tile_rows_ - 1) / tile_rows_ * tile_rows_;
    return row < rows_ ? row : rows_;
  }
  int64_t rows(int64_t block) const { return first_row(block + 1) - first_row(block); }

  int64_t slice() const { return slice_; }
  int64_t slices() const { return slice_ == 0 ? 1 : (depth_ + slice_ - 1) / slice_; }
  int64_t first_depth(int64_t slice) const { return slice * slice_; }
  int64_t depth(int64_t slice) const { return slice + 1 < slices() ? slice_ : depth_ - slice * slice_; }

 private:
  int64_t rows_, depth_, slice_, tile_rows_, most_rows_, count_;
};

extern const ProductKernels kProductDoubleBaseline, kProductFloatBaseline, kProductBf16Baseline;
extern const ProductKernels kProductDoubleAvx2, kProductFloatAvx2, kProductBf16Avx2;
extern const ProductKernels kProductDoubleAvx512, kProductFloatAvx512, kProductBf16Avx512;
extern const ProductKernels kProductBf16Avx512Bf16;  // multiplies pairs in bf16, sums in fp32
extern const ProductKernels kProductBf16Amx;         // kProductBf16Avx512Bf16 with tiles
extern const ProductKernels kProductFloatAmx;        // fp32 from parts in bf16

const ProductKernels& ProductFor(Isa isa, ProductElement element);

}  // namespace tessera::kernels::cpu
