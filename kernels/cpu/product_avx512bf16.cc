#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AVX512BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

#include "kernels/cpu/product_pairs.inc"

constexpr int kMostRows = 12;  // times two vectors of sums: 24 of 32 registers
constexpr int64_t kDepthStep = 768;

// x [rows][padded depth], zeros at the end.
int64_t PreparedBytes(int64_t rows, int64_t depth) { return 2 * rows * PaddedDepth(depth); }

void Prepare(const void* x, int64_t stride, int64_t rows, int64_t depth, void* prepared) {
  const int64_t padded = PaddedDepth(depth);
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t* to = static_cast<uint16_t*>(prepared) + row * padded;
    __builtin_memcpy(to, static_cast<const uint16_t*>(x) + row * stride, 2 * depth);
    for (int64_t k = depth; k < padded; ++k) to[k] = 0;
  }
}

int64_t ScratchBytes(int64_t) { return 4 * kProductRows * kColumns; }

template <int kRows>
inline void MultiplyRows(const uint16_t* x, int64_t stride, const uint16_t* panel, int64_t depth, bool begin,
                         float* sums) {
  __m512 sum[kRows][2];
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < 2; ++i) {
      sum[row][i] = begin ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * kColumns + 16 * i);
    }
  }
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
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(sums + row * kColumns + 16 * i, sum[row][i]);
  }
}

void Multiply(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  const int64_t padded = PaddedDepth(tile.depth);
  const uint16_t* x = static_cast<const uint16_t*>(prepared);
  float* sums = static_cast<float*>(scratch);
  for (int64_t k = 0; k < padded || k == 0; k += kDepthStep) {
    const int64_t depth = Min(kDepthStep, padded - k);
    const uint16_t* weights = static_cast<const uint16_t*>(panel) + k * kColumns;
    int64_t row = 0;
    const auto take = [&]<int kRows>() {
      for (; row + kRows <= tile.rows; row += kRows) {
        MultiplyRows<kRows>(x + row * padded + k, padded, weights, depth, k == 0, sums + row * kColumns);
      }
    };
    take.operator()<kMostRows>();
    take.operator()<4>();
    take.operator()<2>();
    take.operator()<1>();
  }
  StoreRows(tile, 0, tile.rows, sums);
}

}  // namespace

const ProductKernels kProductBf16Avx512Bf16 = {
    .columns = kColumns,
    .most_rows = [](int64_t) { return kProductRows; },
    .panel_bytes = PanelBytes,
    .prepared_bytes = PreparedBytes,
    .scratch_bytes = ScratchBytes,
    .pack = Pack,
    .unpack = Unpack,
    .prepare = Prepare,
    .multiply = Multiply,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never names pairs of bf16 here.
const ProductKernels kProductBf16Avx512Bf16 = {};

}  // namespace tessera::kernels::cpu

#endif
