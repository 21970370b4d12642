// The bf16 product with AMX tiles. Operand A is a tile of 16 rows × 32 elements of the depth, prepared tile by tile;
// operand B is 16 pairs × 16 columns of a panel. Four tiles sum 32 rows × 32 columns over the whole depth of a slice:
// storing and reloading tiles costs as much as thirty tile products.

#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

#include "kernels/cpu/product_pairs.inc"
#include "kernels/cpu/tile_config.inc"

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileHalves = 512;
constexpr int64_t kPanelStride = 4 * kColumns;  // bytes between pairs

inline int64_t RowTiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// [row tiles][depth tiles][16 rows][32], padded with zeros.
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

// A depth is sliced if a block of the whole depth would have so few rows that panels would be read from memory too
// often.
int64_t SliceDepth(int64_t depth) {
  constexpr int64_t kMostWhole = 3072, kMost = 1536;
  if (depth <= kMostWhole) return depth;
  const int64_t slices = (depth + kMost - 1) / kMost;
  return PaddedDepth((depth + slices - 1) / slices);
}

// As many rows as fit into the second-level cache with room to spare, so that each panel, which comes from further
// away, is used for many rows.
int64_t MostRows(int64_t depth) {
  constexpr int64_t kBytes = int64_t{1} << 20, kMost = 512;
  const int64_t rows = kBytes / (2 * PaddedDepth(depth)) / (2 * kTileRows) * (2 * kTileRows);
  return rows < kProductRows ? kProductRows : Min(rows, kMost);
}

int64_t ScratchBytes(int64_t depth) { return 4 * MostRows(depth) * kColumns; }

// Adds the products of one or two tiles of rows with a panel to tiles 0 to 3. Calls `meanwhile` once for each tile of
// the depth; its work costs almost nothing, because the tile unit is the bottleneck.
template <bool kTwoTiles, typename Meanwhile>
inline void AddProducts(const uint16_t* rows, const uint16_t* lower_rows, const uint16_t* panel, int64_t depth_tiles,
                        Meanwhile meanwhile) {
  for (int64_t depth = 0; depth < depth_tiles; ++depth, panel += kPairsDepth * kColumns) {
    _tile_loadd(4, rows + depth * kTileHalves, 64);
    _tile_loadd(6, panel, kPanelStride);
    _tile_loadd(7, panel + 32, kPanelStride);
    if constexpr (kTwoTiles) _tile_loadd(5, lower_rows + depth * kTileHalves, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    meanwhile();
    if constexpr (kTwoTiles) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Writes sums from the scratch memory to the output, one row at a time.
class LateStore {
 public:
  LateStore(const ProductTile& tile, const float* sums) : store_(tile), sums_(sums) {}

  // Queues rows [row, end) for writing. All rows queued before must have been written.
  void Await(int64_t row, int64_t end) {
    row_ = row;
    end_ = end;
  }

  void StoreOne() {
    if (row_ == end_) return;
    const float* sums = sums_ + row_ * kColumns;
    store_.Store(row_, _mm512_load_ps(sums), _mm512_load_ps(sums + 16));
    store_.PrefetchNextPanel(row_);
    ++row_;
  }

  void StoreAll() {
    while (row_ < end_) StoreOne();
  }

 private:
  const RowStore store_;
  const float* sums_;
  int64_t row_ = 0, end_ = 0;
};

void Multiply(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  const int64_t depth_tiles = PaddedDepth(tile.depth) / kPairsDepth, row_tiles = RowTiles(tile.rows);
  const uint16_t* weights = static_cast<const uint16_t*>(panel);
  float* sums = static_cast<float*>(scratch);
  const TileConfig config;
  LoadTileConfig(config);
  LateStore late(tile, sums);
  // While each pair of row tiles is multiplied, a share of the next panel is prefetched and the rows of the previous
  // pair are written.
  const int64_t row_pairs = (row_tiles + 1) / 2, ahead_lines = (32 + row_pairs - 1) / row_pairs;
  const int64_t rows_at_once = depth_tiles == 0 ? 0 : (2 * kTileRows + depth_tiles - 1) / depth_tiles;
  const char* ahead = reinterpret_cast<const char*>(weights + depth_tiles * kPairsDepth * kColumns);
  const auto meanwhile = [&] {
    for (int64_t i = 0; i < ahead_lines; ++i, ahead += 64) __builtin_prefetch(ahead, 0, 2);
    for (int64_t i = 0; i < rows_at_once; ++i) late.StoreOne();
  };
  for (int64_t row = 0; row < row_tiles; row += 2) {
    const bool two_tiles = row + 1 < row_tiles;
    float* to = sums + row * kTileRows * kColumns;
    float* lower_to = to + kTileRows * kColumns;
    if (tile.is_first_slice) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, to, kPanelStride);
      _tile_loadd(1, to + 16, kPanelStride);
      if (two_tiles) {
        _tile_loadd(2, lower_to, kPanelStride);
        _tile_loadd(3, lower_to + 16, kPanelStride);
      }
    }
    const uint16_t* x = static_cast<const uint16_t*>(prepared) + row * depth_tiles * kTileHalves;
    if (two_tiles) {
      AddProducts<true>(x, x + depth_tiles * kTileHalves, weights, depth_tiles, meanwhile);
    } else {
      AddProducts<false>(x, nullptr, weights, depth_tiles, meanwhile);
    }
    late.StoreAll();
    _tile_stored(0, to, kPanelStride);
    _tile_stored(1, to + 16, kPanelStride);
    if (two_tiles) {
      _tile_stored(2, lower_to, kPanelStride);
      _tile_stored(3, lower_to + 16, kPanelStride);
    }
    if (tile.is_last_slice) late.Await(row * kTileRows, Min(tile.rows, (row + 2) * kTileRows));
  }
  late.StoreAll();
  _tile_release();
}

}  // namespace

const ProductKernels kProductBf16Amx = {
    .columns = kColumns,
    .tile_rows = 2 * kTileRows,
    .slice_depth = SliceDepth,
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

// BestIsa() never returns an instruction set with tiles in this build.
const ProductKernels kProductBf16Amx = {};

}  // namespace tessera::kernels::cpu

#endif
