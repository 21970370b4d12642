// The product of fp32 with AMX tiles, which multiply bf16 only. A number is the sum of three numbers of bf16: what it
// rounds to, what the rest rounds to, and the rest of that, whose bits are few enough. Of the nine products of two such
// numbers six are added up; the other three are together at most 2^-24 of the whole, which is what fp32 rounds a
// product by (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019). Numbers below 2^-110 lose bits, and an infinite one makes NaN.
//
// A panel is [depth][kColumns] of fp32 and is split where it is used, a chunk of the depth at a time. The pairs that
// tiles multiply are elements k and k + 16 of the 32 of a tile.

#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 2;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: product.inc is written in its terms.
#include "kernels/cpu/lanes.inc"
#include "kernels/cpu/product.inc"
#include "kernels/cpu/tile_config.inc"

constexpr int64_t kColumns = ColumnsOf<float>();
constexpr int64_t kTerms = 3;
constexpr int64_t kSteps = 6;  // products of terms that are added up
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;
constexpr int64_t kTileHalves = kTileRows * kTileDepth;
constexpr int64_t kRowStep = kTerms * kTileHalves;        // of a tile of rows and of the depth
constexpr int64_t kPanelStep = 2 * kTerms * kTileHalves;  // of a panel's two tiles of columns
constexpr int64_t kChunkTiles = 16;                       // of the depth of a panel, split at a time
constexpr int64_t kSumsStride = sizeof(float) * kColumns;

inline int64_t TilesOf(int64_t count, int64_t each) { return (count + each - 1) / each; }

// To bf16, ties away from zero; the lanes' lower halves are zero.
inline __m512 Round(__m512 x) {
  const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Pairs of bf16: the upper halves of the lanes of two vectors.
inline void StorePairs(uint16_t* to, __m512 first, __m512 second) {
  constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;
  _mm512_store_si512(to, _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(first), 16), kUpperHalves,
                                               _mm512_castps_si512(second)));
}

// The terms of two vectors, kTileHalves * `tiles` apart.
inline void StoreTerms(uint16_t* to, int64_t tiles, __m512 first, __m512 second) {
  for (int64_t term = 0; term < kTerms; ++term, to += tiles * kTileHalves) {
    const __m512 first_term = term + 1 < kTerms ? Round(first) : first;
    const __m512 second_term = term + 1 < kTerms ? Round(second) : second;
    StorePairs(to, first_term, second_term);
    first = _mm512_sub_ps(first, first_term);
    second = _mm512_sub_ps(second, second_term);
  }
}

// [row tiles][depth tiles][terms][16 rows][32], zeros beyond the rows and the depth.
int64_t PreparedSplitBytes(int64_t rows, int64_t depth) {
  return 2 * TilesOf(rows, kTileRows) * TilesOf(depth, kTileDepth) * kRowStep;
}

void PrepareSplit(const void* x, int64_t stride, int64_t rows, int64_t depth, void* prepared) {
  uint16_t* to = static_cast<uint16_t*>(prepared);
  for (int64_t first_row = 0; first_row < rows; first_row += kTileRows) {
    for (int64_t k = 0; k < depth; k += kTileDepth, to += kRowStep) {
      const __mmask16 left = LanesBelow(depth - k), right = LanesBelow(depth - k - kLanes);
      for (int64_t row = 0; row < kTileRows; ++row) {
        const bool exists = first_row + row < rows;
        const float* from = static_cast<const float*>(x) + (exists ? (first_row + row) * stride : 0) + k;
        StoreTerms(to + row * kTileDepth, 1, _mm512_maskz_loadu_ps(exists ? left : 0, from),
                   _mm512_maskz_loadu_ps(exists ? right : 0, from + kLanes));
      }
    }
  }
}

// One of 16 rows of pairs of a panel's tile, [terms][2 tiles of columns][16 pairs][16 columns][2]. `depth` rows of the
// panel are left; a whole tile has kTileDepth.
inline void SplitPairs(const float* from, int64_t pair, int64_t depth, uint16_t* to) {
  for (int64_t half = 0; half < 2; ++half) {
    const float* first = from + pair * kColumns + half * kLanes;
    const float* second = first + kTileDepth / 2 * kColumns;
    StoreTerms(to + half * kTileHalves + pair * kTileDepth, 2,
               pair < depth ? _mm512_loadu_ps(first) : _mm512_setzero_ps(),
               pair + kTileDepth / 2 < depth ? _mm512_loadu_ps(second) : _mm512_setzero_ps());
  }
}

template <bool kTwoTiles>
inline void LoadRows(const uint16_t* rows, const uint16_t* lower_rows, int64_t term) {
  _tile_loadd(4, rows + term * kTileHalves, 64);
  if constexpr (kTwoTiles) _tile_loadd(5, lower_rows + term * kTileHalves, 64);
}

inline void LoadColumns(const uint16_t* panel, int64_t term) {
  _tile_loadd(6, panel + 2 * term * kTileHalves, 64);
  _tile_loadd(7, panel + (2 * term + 1) * kTileHalves, 64);
}

template <bool kTwoTiles>
inline void MultiplyTiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwoTiles) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Adds the products of one or two tiles of rows with a panel to tiles 0 to 3, in an order of the terms in which each
// step needs new tiles of one side only. `meanwhile` is called with the number of each step.
template <bool kTwoTiles, typename Meanwhile>
inline void AddProducts(const uint16_t* rows, const uint16_t* lower_rows, const uint16_t* panel, Meanwhile meanwhile) {
  BeforeTileLoads();
  LoadRows<kTwoTiles>(rows, lower_rows, 2);
  LoadColumns(panel, 0);
  MultiplyTiles<kTwoTiles>();
  meanwhile(0);
  LoadRows<kTwoTiles>(rows, lower_rows, 1);
  MultiplyTiles<kTwoTiles>();
  meanwhile(1);
  LoadColumns(panel, 1);
  MultiplyTiles<kTwoTiles>();
  meanwhile(2);
  LoadRows<kTwoTiles>(rows, lower_rows, 0);
  MultiplyTiles<kTwoTiles>();
  meanwhile(3);
  LoadColumns(panel, 0);
  MultiplyTiles<kTwoTiles>();
  meanwhile(4);
  LoadColumns(panel, 2);
  MultiplyTiles<kTwoTiles>();
  meanwhile(5);
}

// Writes the sums of a tile's rows out, a row at a time, while others are multiplied.
class LateStore {
 public:
  LateStore(const ProductTile& tile, const float* sums)
      : sums_(sums),
        row_bias_(static_cast<const float*>(tile.row_bias)),
        out_(static_cast<float*>(tile.out)),
        out_stride_(tile.out_stride),
        adds_(tile.result == ProductResult::kAddedSums) {
    const auto* bias = static_cast<const float*>(tile.column_bias);
    for (int half = 0; half < 2; ++half) {
      lanes_[half] = LanesBelow(tile.columns - half * kLanes);
      bias_[half] = bias != nullptr ? _mm512_maskz_loadu_ps(lanes_[half], bias + half * kLanes) : _mm512_setzero_ps();
    }
  }

  // Rows up to `end` have their sums.
  void Await(int64_t end) { end_ = end; }

  void StoreOne() {
    if (row_ == end_) return;
    float* out = out_ + row_ * out_stride_;
    for (int half = 0; half < 2; ++half, out += kLanes) {
      const __m512 bias = row_bias_ != nullptr ? _mm512_set1_ps(row_bias_[row_]) : bias_[half];
      __m512 sum = _mm512_add_ps(_mm512_load_ps(sums_ + row_ * kColumns + half * kLanes), bias);
      if (adds_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes_[half], out));
      _mm512_mask_storeu_ps(out, lanes_[half], sum);
    }
    ++row_;
  }

  void StoreAll() {
    while (row_ < end_) StoreOne();
  }

 private:
  const float* const sums_;
  const float* const row_bias_;
  float* const out_;
  const int64_t out_stride_;
  const bool adds_;
  __mmask16 lanes_[2];
  __m512 bias_[2];
  int64_t row_ = 0, end_ = 0;
};

// A chunk of a panel's depth, which the first rows split and later ones find split.
struct Chunk {
  const float* weights;
  int64_t depth;
  uint16_t* split;

  int64_t tiles() const { return TilesOf(depth, kTileDepth); }
  void Split(int64_t tile, int64_t first_pair, int64_t last_pair) const {
    const int64_t k = tile * kTileDepth;
    if (k >= depth) return;
    for (int64_t pair = first_pair; pair < last_pair; ++pair) {
      SplitPairs(weights + k * kColumns, pair, depth - k, split + tile * kPanelStep);
    }
  }
};

// The sums of one or two tiles of rows over a chunk. While a tile is multiplied the next one is split, or `ahead` is
// asked for and rows with their sums are written out.
template <bool kTwoTiles>
void MultiplyChunk(const uint16_t* rows, const uint16_t* lower_rows, const Chunk& chunk, bool splits, bool begins,
                   const char*& ahead, LateStore& late, float* sums) {
  float* lower_sums = sums + kTileRows * kColumns;
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kLanes, kSumsStride);
    if constexpr (kTwoTiles) {
      _tile_loadd(2, lower_sums, kSumsStride);
      _tile_loadd(3, lower_sums + kLanes, kSumsStride);
    }
  }
  if (splits) chunk.Split(0, 0, kTileRows);
  for (int64_t tile = 0; tile < chunk.tiles(); ++tile, rows += kRowStep, lower_rows += kRowStep) {
    const uint16_t* columns = chunk.split + tile * kPanelStep;
    if (splits) {
      AddProducts<kTwoTiles>(rows, lower_rows, columns, [&](int64_t step) {
        chunk.Split(tile + 1, step * kTileRows / kSteps, (step + 1) * kTileRows / kSteps);
      });
    } else {
      AddProducts<kTwoTiles>(rows, lower_rows, columns, [&](int64_t) {
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + 64, 0, 2);
        ahead += 128;
        late.StoreOne();
      });
    }
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kLanes, kSumsStride);
  if constexpr (kTwoTiles) {
    _tile_stored(2, lower_sums, kSumsStride);
    _tile_stored(3, lower_sums + kLanes, kSumsStride);
  }
}

int64_t SliceDepth(int64_t depth) {
  constexpr int64_t kMostWhole = 1536, kMost = 1024;
  if (depth <= kMostWhole) return depth;
  const int64_t slices = TilesOf(depth, kMost);
  return RoundUp(TilesOf(depth, slices), kTileDepth);
}

// As many rows as leave room in the second-level cache.
int64_t MostRows(int64_t depth) {
  constexpr int64_t kBytes = int64_t{1} << 20, kMost = 256;
  const int64_t rows = kBytes / (2 * kTerms * RoundUp(depth, kTileDepth) + 1) / (2 * kTileRows) * (2 * kTileRows);
  return rows < kProductRows ? kProductRows : Min(rows, kMost);
}

int64_t SumsBytes(int64_t depth) { return kSumsStride * MostRows(depth); }

void MultiplySplit(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  alignas(64) uint16_t split[kChunkTiles * kPanelStep];
  const int64_t depth_tiles = TilesOf(tile.depth, kTileDepth), row_tiles = TilesOf(tile.rows, kTileRows);
  const float* weights = static_cast<const float*>(panel);
  float* sums = static_cast<float*>(scratch);
  TileConfig config;
  if (tile.rows < kTileRows) {
    for (const int number : {0, 1, 2, 3, 4, 5}) config.rows[number] = static_cast<uint8_t>(tile.rows);
  }
  LoadTileConfig(config);
  LateStore late(tile, sums);
  const char* ahead = reinterpret_cast<const char*>(weights + tile.depth * kColumns);
  for (int64_t first = 0; first == 0 || first < depth_tiles; first += kChunkTiles) {
    const int64_t k = first * kTileDepth;
    const Chunk chunk{weights + k * kColumns, Min(tile.depth - k, kChunkTiles * kTileDepth), split};
    const bool begins = first == 0 && tile.is_first_slice;
    for (int64_t row = 0; row < row_tiles; row += 2) {
      const uint16_t* rows = static_cast<const uint16_t*>(prepared) + (row * depth_tiles + first) * kRowStep;
      const auto multiply = row + 1 < row_tiles ? MultiplyChunk<true> : MultiplyChunk<false>;
      multiply(rows, rows + depth_tiles * kRowStep, chunk, row == 0, begins, ahead, late,
               sums + row * kTileRows * kColumns);
      if (tile.is_last_slice && first + kChunkTiles >= depth_tiles) late.Await(Min(tile.rows, (row + 2) * kTileRows));
    }
  }
  _tile_release();
  late.StoreAll();
}

}  // namespace

const ProductKernels kProductFloatAmx = {
    .columns = kColumns,
    .tile_rows = 2 * kTileRows,
    .slice_depth = SliceDepth,
    .most_rows = MostRows,
    .panel_bytes = PanelBytes<float>,
    .prepared_bytes = PreparedSplitBytes,
    .scratch_bytes = SumsBytes,
    .pack = Pack<float>,
    .pack_rows = PackRows<float>,
    .unpack = Unpack<float>,
    .prepare = PrepareSplit,
    .multiply = MultiplySplit,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never names tiles here.
const ProductKernels kProductFloatAmx = {};

}  // namespace tessera::kernels::cpu

#endif
