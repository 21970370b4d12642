// The product of bf16 with AMX tiles. Operand A is a tile of 16 rows × 32 elements of the depth, prepared tile by tile;
// operand B is 16 pairs × 16 columns of a panel. A call adds 32 rows × 32 columns; the sums of a long depth are cut.

#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

#include "kernels/cpu/product_pairs.inc"
#include "kernels/cpu/tile_config.inc"

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileHalves = 512;
constexpr int64_t kDepthStep = 384;             // of a panel, so that it stays in the first-level cache
constexpr int64_t kPanelStride = 4 * kColumns;  // bytes between pairs

inline int64_t RowTiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// [row tiles][depth tiles][16 rows][32], zeros beyond the rows and the depth.
int64_t PreparedBytes(int64_t rows, int64_t depth) { return 2 * RowTiles(rows) * kTileRows * PaddedDepth(depth); }

void Prepare(const void* x, int64_t stride, int64_t rows, int64_t depth, void* prepared) {
  const int64_t depth_tiles = PaddedDepth(depth) / kPairsDepth;
  for (int64_t row = 0; row < RowTiles(rows) * kTileRows; ++row) {
    uint16_t* to =
        static_cast<uint16_t*>(prepared) + row / kTileRows * depth_tiles * kTileHalves + row % kTileRows * kPairsDepth;
    const uint16_t* from = static_cast<const uint16_t*>(x) + (row < rows ? row : 0) * stride;
    for (int64_t tile = 0; tile < depth_tiles; ++tile) {
      const int64_t rest = row < rows ? Min(kPairsDepth, depth - tile * kPairsDepth) : 0;
      const __mmask32 mask = static_cast<__mmask32>(rest >= 32 ? 0xffffffffu : (1u << rest) - 1);
      _mm512_store_si512(to + tile * kTileHalves, _mm512_maskz_loadu_epi16(mask, from + tile * kPairsDepth));
    }
  }
}

// As many rows as leave room in the second-level cache, so that a panel, which comes from farther away, serves many.
int64_t MostRows(int64_t depth) {
  constexpr int64_t kBytes = int64_t{1} << 20, kMost = 512;
  const int64_t rows = kBytes / (2 * PaddedDepth(depth)) / (2 * kTileRows) * (2 * kTileRows);
  return rows < kProductRows ? kProductRows : Min(rows, kMost);
}

int64_t ScratchBytes(int64_t depth) { return 4 * MostRows(depth) * kColumns; }

// Asks for lines of what will be multiplied next.
inline void Prefetch(const char* from, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(from + i * 64, 0, 2);
}

void Multiply(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  const int64_t depth_tiles = PaddedDepth(tile.depth) / kPairsDepth, row_tiles = RowTiles(tile.rows);
  const uint16_t* x = static_cast<const uint16_t*>(prepared);
  const uint16_t* weights = static_cast<const uint16_t*>(panel);
  float* sums = static_cast<float*>(scratch);
  const TileConfig config;
  _tile_loadconfig(&config);
  // Of the 32 lines of a panel that a product of tiles reads, each pair of row tiles brings its share of the next
  // panel.
  const int64_t row_pairs = (row_tiles + 1) / 2, ahead_lines = (32 + row_pairs - 1) / row_pairs;
  constexpr int64_t kStep = kDepthStep / kPairsDepth;
  const RowStore store(tile);
  for (int64_t step = 0; step < depth_tiles || step == 0; step += kStep) {
    const int64_t end = Min(depth_tiles, step + kStep);
    for (int64_t row = 0; row < row_tiles; row += 2) {
      const bool lower = row + 1 < row_tiles;
      float* to = sums + row * kTileRows * kColumns;
      float* lower_to = to + kTileRows * kColumns;
      const uint16_t* upper_x = x + row * depth_tiles * kTileHalves;
      const uint16_t* lower_x = upper_x + depth_tiles * kTileHalves;
      if (step == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      } else {
        _tile_loadd(0, to, kPanelStride);
        _tile_loadd(1, to + 16, kPanelStride);
        if (lower) {
          _tile_loadd(2, lower_to, kPanelStride);
          _tile_loadd(3, lower_to + 16, kPanelStride);
        }
      }
      const char* ahead = reinterpret_cast<const char*>(weights + end * kPairsDepth * kColumns) +
                          row / 2 * ahead_lines * 64 * (end - step);
      if (lower) {
        for (int64_t depth = step; depth < end; ++depth) {
          const uint16_t* pairs = weights + depth * kPairsDepth * kColumns;
          _tile_loadd(4, upper_x + depth * kTileHalves, 64);
          _tile_loadd(6, pairs, kPanelStride);
          _tile_loadd(7, pairs + 32, kPanelStride);
          Prefetch(ahead, ahead_lines);
          ahead += ahead_lines * 64;
          _tile_loadd(5, lower_x + depth * kTileHalves, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, lower_to, kPanelStride);
        _tile_stored(3, lower_to + 16, kPanelStride);
      } else {
        for (int64_t depth = step; depth < end; ++depth) {
          const uint16_t* pairs = weights + depth * kPairsDepth * kColumns;
          _tile_loadd(4, upper_x + depth * kTileHalves, 64);
          _tile_loadd(6, pairs, kPanelStride);
          _tile_loadd(7, pairs + 32, kPanelStride);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
        }
      }
      _tile_stored(0, to, kPanelStride);
      _tile_stored(1, to + 16, kPanelStride);
      // While the next tiles are multiplied.
      for (int64_t i = row * kTileRows; end == depth_tiles && i < Min(tile.rows, (row + 2) * kTileRows); ++i) {
        store.Store(i, _mm512_load_ps(sums + i * kColumns), _mm512_load_ps(sums + i * kColumns + 16));
      }
    }
  }
  _tile_release();
}

}  // namespace

const ProductKernels kProductBf16Amx = {
    .columns = kColumns,
    .tile_rows = 2 * kTileRows,
    .most_rows = MostRows,
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

// BestIsa() never names tiles here.
const ProductKernels kProductBf16Amx = {};

}  // namespace tessera::kernels::cpu

#endif
