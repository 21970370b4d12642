// The fp32 product with AMX tiles, which multiply only bf16. A number is split into the sum of three bf16 numbers: the
// number rounded, the remainder rounded, and the rest, which has few enough bits. Of the nine products of two such sums
// six are added up; the other three are together at most 2^-24 of the whole, which is the rounding error of a product
// in fp32 (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019). Numbers below 2^-110 lose bits, and an infinity gives NaN.
//
// The pairs that tiles multiply are elements k and k + 16 of the 32 of a tile.
//
// Weights that were bf16 in their file have one term, most that were fp16 have two. Terms that are zero are not
// multiplied, which changes no sum. Each chunk of a panel's depth therefore follows a header with the number of terms.
// Chunks with fewer than three terms are split when they are packed. Chunks with three terms would take more memory
// than fp32; they remain [depth][kColumns] in fp32 and are split during the product.

#include "kernels/cpu/product.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)

#include <immintrin.h>

#include <utility>

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 2;

#include "kernels/cpu/vector.inc"
// product.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/lanes.inc"
#include "kernels/cpu/product.inc"
#include "kernels/cpu/tile_config.inc"

constexpr int64_t kColumns = ColumnsOf<float>();
constexpr int64_t kTerms = 3;
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;
constexpr int64_t kTileHalves = kTileRows * kTileDepth;
constexpr int64_t kRowStep = kTerms * kTileHalves;  // between tiles of rows and between tiles of the depth
constexpr int64_t kTermStep = 2 * kTileHalves;      // a panel's two tiles of columns
constexpr int64_t kChunkTiles = 16;
constexpr int64_t kChunkDepth = kChunkTiles * kTileDepth;
constexpr int64_t kSumsStride = sizeof(float) * kColumns;

inline int64_t TilesOf(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Rounds to bf16, ties away from zero; the lower halves of the lanes become zero.
inline __m512 Round(__m512 x) {
  const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Stores pairs of bf16: the upper halves of the lanes of two vectors.
inline void StorePairs(uint16_t* to, __m512 first, __m512 second) {
  constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;
  _mm512_store_si512(to, _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(first), 16), kUpperHalves,
                                               _mm512_castps_si512(second)));
}

// Stores the terms of two vectors; consecutive terms are kTileHalves * `tiles` apart.
inline void StoreTerms(uint16_t* to, int64_t tiles, __m512 first, __m512 second) {
  for (int64_t term = 0; term < kTerms; ++term, to += tiles * kTileHalves) {
    const __m512 first_term = term + 1 < kTerms ? Round(first) : first;
    const __m512 second_term = term + 1 < kTerms ? Round(second) : second;
    StorePairs(to, first_term, second_term);
    first = _mm512_sub_ps(first, first_term);
    second = _mm512_sub_ps(second, second_term);
  }
}

// [row tiles][depth tiles][terms][16 rows][32], padded with zeros.
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

// Splits one of the 16 rows of pairs of a panel's tile from [depth][kColumns] into [terms][2 tiles of columns][16
// pairs][16 columns][2].
inline void SplitPairs(const float* from, int64_t pair, uint16_t* to) {
  for (int64_t half = 0; half < 2; ++half) {
    const float* first = from + pair * kColumns + half * kLanes;
    StoreTerms(to + half * kTileHalves + pair * kTileDepth, 2, _mm512_loadu_ps(first),
               _mm512_loadu_ps(first + kTileDepth / 2 * kColumns));
  }
}

// Returns how many terms are needed to represent all `count` weights, at least one. `count` is a multiple of the lanes.
int64_t CountTerms(const float* weights, int64_t count) {
  const auto is_zero = [](__m512 rest) { return _mm512_cmp_ps_mask(rest, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0; };
  int64_t terms = 1;
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512 weight = _mm512_loadu_ps(weights + i), rest = _mm512_sub_ps(weight, Round(weight));
    if (!is_zero(_mm512_sub_ps(rest, Round(rest)))) return kTerms;
    if (!is_zero(rest)) terms = 2;
  }
  return terms;
}

struct alignas(64) ChunkHeader {
  int64_t terms;
};

// The distance between consecutive tiles of a chunk, in halves.
inline int64_t ChunkStep(int64_t terms) { return terms * kTermStep; }

int64_t PanelBytesInChunks(int64_t depth) {
  const int64_t headers = TilesOf(depth, kChunkDepth) * static_cast<int64_t>(sizeof(ChunkHeader));
  return headers + TilesOf(depth, kTileDepth) * kTileDepth * kColumns * static_cast<int64_t>(sizeof(float));
}

// Calls `each` with the first depth of every chunk, its length and its header in the panel.
template <typename Each>
inline void ForChunks(int64_t depth, void* panel, Each each) {
  for (int64_t k = 0; k < depth; k += kChunkDepth) {
    each(k, Min(kChunkDepth, depth - k),
         reinterpret_cast<ChunkHeader*>(static_cast<char*>(panel) + PanelBytesInChunks(k)));
  }
}

// Splits a chunk whose weights are stored in fp32, unless they need all terms.
void CloseChunk(ChunkHeader* header, int64_t depth) {
  float* weights = reinterpret_cast<float*>(header + 1);
  const int64_t tiles = TilesOf(depth, kTileDepth);
  __builtin_memset(weights + depth * kColumns, 0,
                   static_cast<size_t>((tiles * kTileDepth - depth) * kColumns) * sizeof(float));
  header->terms = CountTerms(weights, depth * kColumns);
  if (header->terms == kTerms) return;
  // The split form takes no more memory than the fp32 form.
  const int64_t step = ChunkStep(header->terms);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    alignas(64) uint16_t split[kTerms * kTermStep];
    for (int64_t pair = 0; pair < kTileDepth / 2; ++pair) {
      SplitPairs(weights + tile * kTileDepth * kColumns, pair, split);
    }
    __builtin_memcpy(reinterpret_cast<uint16_t*>(weights) + tile * step, split, static_cast<size_t>(step) * 2);
  }
}

void PackChunks(const PanelSource& source, int64_t depth, void* panel) {
  ForChunks(depth, panel, [&](int64_t k, int64_t length, ChunkHeader* header) {
    PanelSource chunk = source;
    chunk.data = static_cast<const float*>(source.data) + k * source.depth_stride;
    Pack<float>(chunk, length, header + 1);
    CloseChunk(header, length);
  });
}

void PackRowsInChunks(const void* data, const int64_t* offsets, int64_t depth, void* panel) {
  ForChunks(depth, panel, [&](int64_t k, int64_t length, ChunkHeader* header) {
    PackRows<float>(data, offsets + k, length, header + 1);
    CloseChunk(header, length);
  });
}

void UnpackChunks(const void* panel, int64_t depth, int64_t columns, void* weight) {
  float* to = static_cast<float*>(weight);
  ForChunks(depth, const_cast<void*>(panel), [&](int64_t first, int64_t length, const ChunkHeader* header) {
    const float* whole = reinterpret_cast<const float*>(header + 1);
    const uint16_t* split = reinterpret_cast<const uint16_t*>(header + 1);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t k = 0; k < length; ++k) {
        float& element = to[c * depth + first + k];
        if (header->terms == kTerms) {
          element = whole[k * kColumns + c];
          continue;
        }
        const uint16_t* term = split + k / kTileDepth * ChunkStep(header->terms) + c / kLanes * kTileHalves +
                               k % (kTileDepth / 2) * kTileDepth + c % kLanes * 2 + k % kTileDepth / (kTileDepth / 2);
        element = WidenElement(Bf16{term[0]});
        // The first term alone may be a negative zero.
        if (header->terms > 1 && term[kTermStep] != 0) element += WidenElement(Bf16{term[kTermStep]});
      }
    }
  });
}

template <bool kTwoTiles>
inline void LoadRows(const uint16_t* rows, const uint16_t* lower_rows, int64_t term) {
  _tile_loadd(4, rows + term * kTileHalves, 64);
  if constexpr (kTwoTiles) _tile_loadd(5, lower_rows + term * kTileHalves, 64);
}

inline void LoadColumns(const uint16_t* panel, int64_t term) {
  _tile_loadd(6, panel + term * kTermStep, 64);
  _tile_loadd(7, panel + term * kTermStep + kTileHalves, 64);
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

// The pairs of a row's term and a panel's term whose products are added, in an order in which each step loads new tiles
// on one side only.
struct TermPair {
  int64_t row, panel;
};
constexpr TermPair kTermPairs[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 0}, {0, 2}};

constexpr int64_t StepsOf(int64_t panel_terms) {
  int64_t steps = 0;
  for (const TermPair& pair : kTermPairs) steps += pair.panel < panel_terms ? 1 : 0;
  return steps;
}

// The pairs for a panel that has only kPanelTerms terms.
template <int64_t kPanelTerms>
struct Steps {
  static constexpr int64_t kCount = StepsOf(kPanelTerms);
  TermPair pairs[kCount] = {};
  constexpr Steps() {
    int64_t step = 0;
    for (const TermPair& pair : kTermPairs) {
      if (pair.panel < kPanelTerms) pairs[step++] = pair;
    }
  }
};

// Adds the products of one or two tiles of rows with a panel's tile to tiles 0 to 3. Calls `meanwhile` with the number
// of each step.
template <bool kTwoTiles, typename Steps, typename Meanwhile>
inline void AddProducts(const uint16_t* rows, const uint16_t* lower_rows, const uint16_t* panel, Meanwhile meanwhile) {
  constexpr Steps kSteps;
  const auto step = [&]<int64_t kStep>() {
    constexpr TermPair kPair = kSteps.pairs[kStep], kBefore = kSteps.pairs[kStep == 0 ? 0 : kStep - 1];
    if constexpr (kStep == 0 || kPair.row != kBefore.row) LoadRows<kTwoTiles>(rows, lower_rows, kPair.row);
    if constexpr (kStep == 0 || kPair.panel != kBefore.panel) LoadColumns(panel, kPair.panel);
    MultiplyTiles<kTwoTiles>();
    meanwhile(kStep);
  };
  BeforeTileLoads();
  [&]<int64_t... kStep>(std::integer_sequence<int64_t, kStep...>) { (step.template operator()<kStep>(), ...); }
  (std::make_integer_sequence<int64_t, Steps::kCount>());
}

// Writes the sums of a tile's rows to the output, one row at a time, while others are multiplied.
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

  // Allows rows up to `end` to be written: their sums are complete.
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

// A chunk as it is multiplied: split when it was packed, or by the first rows that use it.
struct Chunk {
  int64_t tiles, terms;
  const uint16_t* columns;  // the split weights
  const float* weights;     // fp32 weights that the first rows split, or null
  uint16_t* split;          // destination of the split

  void Split(int64_t tile, int64_t first_pair, int64_t last_pair) const {
    if (tile >= tiles) return;
    for (int64_t pair = first_pair; pair < last_pair; ++pair) {
      SplitPairs(weights + tile * kTileDepth * kColumns, pair, split + tile * ChunkStep(kTerms));
    }
  }
};

// The chunks of a panel as they are multiplied.
struct Chunks {
  const char* panel;
  int64_t depth;
  uint16_t* split;  // memory for one chunk with all terms

  int64_t count() const { return TilesOf(depth, kChunkDepth); }
  Chunk At(int64_t chunk) const {
    const int64_t k = chunk * kChunkDepth;
    const auto* header = reinterpret_cast<const ChunkHeader*>(panel + PanelBytesInChunks(k));
    const bool is_split = header->terms < kTerms;
    const void* data = header + 1;
    return {.tiles = TilesOf(Min(kChunkDepth, depth - k), kTileDepth),
            .terms = header->terms,
            .columns = is_split ? static_cast<const uint16_t*>(data) : split,
            .weights = is_split ? nullptr : static_cast<const float*>(data),
            .split = split};
  }
};

// Work done while tiles are multiplied: prefetches the next panel and writes rows whose sums are complete.
struct Meanwhile {
  const char* ahead;
  int64_t rows_at_once;
  LateStore late;

  void Step() {
    __builtin_prefetch(ahead, 0, 2);
    __builtin_prefetch(ahead + 64, 0, 2);
    ahead += 128;
    for (int64_t i = 0; i < rows_at_once; ++i) late.StoreOne();
  }
};

// Adds a chunk's products with one or two tiles of rows to tiles 0 to 3. If the chunk must be split, each tile is split
// while the previous one is multiplied.
template <bool kTwoTiles, int64_t kPanelTerms>
void AddChunk(const uint16_t* rows, const uint16_t* lower_rows, const Chunk& chunk, bool splits, Meanwhile& meanwhile) {
  using Order = Steps<kPanelTerms>;
  if (splits) chunk.Split(0, 0, kTileRows);
  for (int64_t tile = 0; tile < chunk.tiles; ++tile, rows += kRowStep, lower_rows += kRowStep) {
    const uint16_t* columns = chunk.columns + tile * ChunkStep(kPanelTerms);
    AddProducts<kTwoTiles, Order>(rows, lower_rows, columns, [&](int64_t step) {
      if (splits) {
        chunk.Split(tile + 1, step * kTileRows / Order::kCount, (step + 1) * kTileRows / Order::kCount);
      } else {
        meanwhile.Step();
      }
    });
  }
}

// Computes the sums of one or two tiles of rows over chunks [first, last). If `begins`, they start at zero; otherwise
// they continue from `sums`.
template <bool kTwoTiles>
void MultiplyChunks(const uint16_t* rows, const uint16_t* lower_rows, const Chunks& chunks, int64_t first, int64_t last,
                    bool splits, bool begins, Meanwhile& meanwhile, float* sums) {
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
  for (; first < last; ++first, rows += kChunkTiles * kRowStep, lower_rows += kChunkTiles * kRowStep) {
    const Chunk chunk = chunks.At(first);
    switch (chunk.terms) {
      case 1:
        AddChunk<kTwoTiles, 1>(rows, lower_rows, chunk, false, meanwhile);
        break;
      case 2:
        AddChunk<kTwoTiles, 2>(rows, lower_rows, chunk, false, meanwhile);
        break;
      default:
        AddChunk<kTwoTiles, 3>(rows, lower_rows, chunk, splits, meanwhile);
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
  static_assert(kMost % kChunkDepth == 0);
  return depth <= kMostWhole ? depth : kMost;
}

// As many rows as fit into the second-level cache with room to spare.
int64_t MostRows(int64_t depth) {
  constexpr int64_t kBytes = int64_t{1} << 20, kMost = 256;
  const int64_t rows = kBytes / (2 * kTerms * RoundUp(depth, kTileDepth) + 1) / (2 * kTileRows) * (2 * kTileRows);
  return rows < kProductRows ? kProductRows : Min(rows, kMost);
}

int64_t SumsBytes(int64_t depth) { return kSumsStride * MostRows(depth); }

void MultiplySplit(const void* prepared, const void* panel, const ProductTile& tile, void* scratch) {
  alignas(64) uint16_t split[kChunkTiles * kTerms * kTermStep];
  const Chunks chunks{static_cast<const char*>(panel), tile.depth, split};
  int64_t steps = 1;
  bool all_split = true;
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Chunk chunk = chunks.At(i);
    all_split = all_split && chunk.weights == nullptr;
    steps += chunk.tiles * StepsOf(chunk.terms);
  }
  TileConfig config;
  if (tile.rows < kTileRows) {
    for (const int number : {0, 1, 2, 3, 4, 5}) config.rows[number] = static_cast<uint8_t>(tile.rows);
  }
  LoadTileConfig(config);
  const int64_t depth_tiles = TilesOf(tile.depth, kTileDepth), row_tiles = TilesOf(tile.rows, kTileRows);
  float* sums = static_cast<float*>(scratch);
  Meanwhile meanwhile{chunks.panel + PanelBytesInChunks(tile.depth), TilesOf(2 * kTileRows, steps),
                      LateStore(tile, sums)};
  // Sums remain in tiles over the whole depth. If chunks must be split, there is memory for one split chunk only, so
  // chunks are processed one after the other.
  const int64_t at_once = all_split ? chunks.count() : 1;
  int64_t first = 0;
  do {
    const int64_t next = Min(chunks.count(), first + at_once);
    for (int64_t row = 0; row < row_tiles; row += 2) {
      const uint16_t* rows =
          static_cast<const uint16_t*>(prepared) + (row * depth_tiles + first * kChunkTiles) * kRowStep;
      const auto multiply = row + 1 < row_tiles ? MultiplyChunks<true> : MultiplyChunks<false>;
      multiply(rows, rows + depth_tiles * kRowStep, chunks, first, next, row == 0, first == 0 && tile.is_first_slice,
               meanwhile, sums + row * kTileRows * kColumns);
      if (tile.is_last_slice && next == chunks.count()) meanwhile.late.Await(Min(tile.rows, (row + 2) * kTileRows));
    }
    first = next;
  } while (first < chunks.count());
  _tile_release();
  meanwhile.late.StoreAll();
}

}  // namespace

const ProductKernels kProductFloatAmx = {
    .columns = kColumns,
    .tile_rows = 2 * kTileRows,
    .slice_depth = SliceDepth,
    .most_rows = MostRows,
    .panel_bytes = PanelBytesInChunks,
    .prepared_bytes = PreparedSplitBytes,
    .scratch_bytes = SumsBytes,
    .pack = PackChunks,
    .pack_rows = PackRowsInChunks,
    .unpack = UnpackChunks,
    .prepare = PrepareSplit,
    .multiply = MultiplySplit,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never returns an instruction set with tiles in this build.
const ProductKernels kProductFloatAmx = {};

}  // namespace tessera::kernels::cpu

#endif
