#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AVX512BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

#include "kernels/cpu/product_pairs.inc"

constexpr int kMostRows = 12;  // times two vectors of sums: 24 of 32 registers
constexpr int64_t kDepthStep = 3072;

// x [rows][stride], padded with zeros. Rows whole pages apart would compete for few lines of the first-level cache.
int64_t PreparedStride(int64_t depth) {
  const int64_t padded = PaddedDepth(depth);
  return padded % 1024 == 0 ? padded + kPairsDepth : padded;
}

int64_t PreparedBytes(int64_t rows, int64_t depth) { return 2 * rows * PreparedStride(depth); }

void Prepare(const void* x, int64_t stride, int64_t rows, int64_t depth, void* prepared) {
  const int64_t padded = PaddedDepth(depth), to_stride = PreparedStride(depth);
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t* to = static_cast<uint16_t*>(prepared) + row * to_stride;
    __builtin_memcpy(to, static_cast<const uint16_t*>(x) + row * stride, 2 * depth);
    for (int64_t k = depth; k < padded; ++k) to[k] = 0;
  }
}

int64_t ScratchBytes(int64_t) { return 4 * kProductRows * kColumns; }

// Continues the sums over `depth` further elements.
template <int kRows>
inline void MultiplyRows(const uint16_t* x, int64_t stride, const uint16_t* panel, int64_t depth,
                         __m512 (&sum)[kRows][2]) {
  for (int64_t k = 0; k < depth; k += 2) {
    const __m512bh left = (__m512bh)_mm512_loadu_si512(panel + k * kColumns);
    const __m512bh right = (__m512bh)_mm512_loadu_si512(panel + k * kColumns + 32);
    for (int row = 0; row < kRows; ++row) {
      int32_t pair;
      __builtin_memcpy(&pair, x + row * stride + k, sizeof pair);
      const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
      sum[row][0] = _mm512_dpbf16_ps(sum[row][0], value, left);
      sum[row][1] = _mm512_dpbf16_ps(sum[row][1], value, right);
    }
  }
}

void Multiply(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  const int64_t padded = PaddedDepth(tile.depth), stride = PreparedStride(tile.depth);
  const uint16_t* x = static_cast<const uint16_t*>(prepared);
  float* sums = static_cast<float*>(scratch);
  const RowStore store(tile);
  for (int64_t k = 0; k < padded || k == 0; k += kDepthStep) {
    const int64_t depth = Min(kDepthStep, padded - k);
    const uint16_t* weights = static_cast<const uint16_t*>(panel) + k * kColumns;
    const bool begin = k == 0, end = k + depth >= padded;
    int64_t row = 0;
    const auto take = [&]<int kRows>() {
      for (; row + kRows <= tile.rows; row += kRows) {
        __m512 sum[kRows][2];
        float* of_row = sums + row * kColumns;
        for (int i = 0; i < kRows; ++i) {
          if (end) store.Prefetch(row + i);
          for (int part = 0; part < 2; ++part) {
            sum[i][part] = begin ? _mm512_setzero_ps() : _mm512_load_ps(of_row + i * kColumns + 16 * part);
          }
        }
        MultiplyRows<kRows>(x + row * stride + k, stride, weights, depth, sum);
        for (int i = 0; i < kRows; ++i) {
          if (end) {
            store.Store(row + i, sum[i][0], sum[i][1]);
          } else {
            for (int part = 0; part < 2; ++part) _mm512_store_ps(of_row + i * kColumns + 16 * part, sum[i][part]);
          }
        }
      }
    };
    take.operator()<kMostRows>();
    take.operator()<4>();
    take.operator()<2>();
    take.operator()<1>();
  }
}

}  // namespace

const ProductKernels kProductBf16Avx512Bf16 = {
    .columns = kColumns,
    .tile_rows = kMostRows,
    .slice_depth = WholeDepth,
    .most_rows = [](int64_t) { return kProductRows; },
    .panel_bytes = PanelBytes,
    .prepared_bytes = PreparedBytes,
    .scratch_bytes = ScratchBytes,
    .pack = Pack,
    .pack_rows = PackRows,
    .unpack = Unpack,
    .prepare = Prepare,
    .multiply = Multiply,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never returns an instruction set with bf16 pairs in this build.
const ProductKernels kProductBf16Avx512Bf16 = {};

}  // namespace tessera::kernels::cpu

#endif
