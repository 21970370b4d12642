// Attention for bf16 with AMX tiles: products in tiles with fp32 sums, softmax in fp32 with AVX-512.
//
// A tile is 16 rows of 64 bytes. Operand A holds 16 rows × 32 bf16; operand B holds 32 rows × 16 columns with row pairs
// interleaved; a product adds to 16 × 16 fp32 (Intel SDM volume 1, chapter 18). Everything is stored tile by tile,
// 1 KiB each:
//   keys    [16 keys][32 channels]   B of the first product
//   values  [32 keys][16 channels]   B of the second product
//   queries [16 rows][32 channels]   A of the first product
//   weights [16 rows][32 keys]       A of the second product
//   sums    [16 rows][16 channels]   fp32
// A row block is two tiles high; each pair of B tiles is used for both. One more column of the values is all ones, so
// the last column of the sums is the sum of the weights.

#include <cstdint>

#include "kernels/cpu/attention.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

#include "kernels/cpu/tile_config.inc"

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kTileFloats = 256;
constexpr int64_t kTileHalves = 512;
constexpr int64_t kDepth = 32;  // bf16 elements summed over by one tile product
constexpr int64_t kRowBlock = 2 * kTileRows;
constexpr int64_t kKeyBlock = 128;
constexpr float kLog2E = 1.442695041f;
constexpr float kLowest = -1e30f;  // a score below every real one, finite so that differences stay numbers

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Tiles(int64_t length, int64_t step) { return (length + step - 1) / step; }

struct Shape {
  int64_t depth_tiles;  // head_dim as the summed dimension
  int64_t width_tiles;  // head_dim and the column of ones as columns
  int64_t key_steps;    // keys as the summed dimension
};

inline Shape ShapeOf(int64_t key_count, int64_t head_dim) {
  return {Tiles(head_dim, kDepth), Tiles(head_dim + 1, kTileRows), Tiles(key_count, kDepth)};
}

// Keys are padded to a multiple of kDepth, so twice as many tiles of 16 keys as steps of 32.
inline int64_t KeyHalves(const Shape& shape) { return shape.key_steps * 2 * shape.depth_tiles * kTileHalves; }

int64_t PackedBytes(int64_t key_count, int64_t head_dim) {
  const Shape shape = ShapeOf(key_count, head_dim);
  return 2 * KeyHalves(shape) + shape.key_steps * shape.width_tiles * kTileBytes;
}

struct Scratch {
  float* scores;      // [kRowBlock][kKeyBlock]
  uint16_t* weights;  // [2][kKeyBlock / kDepth] tiles
  float* sums;        // [2][width_tiles] tiles
  uint16_t* queries;  // [2][depth_tiles] tiles
  float* bias;        // [kKeyBlock]
  float* largest;     // [kRowBlock]
};

int64_t ScratchBytes(int64_t, int64_t head_dim) {
  const Shape shape = ShapeOf(1, head_dim);
  return kRowBlock * kKeyBlock * 6 + 2 * (shape.width_tiles + shape.depth_tiles) * kTileBytes + kKeyBlock * 4 +
         kRowBlock * 4;
}

inline Scratch Carve(const Shape& shape, void* buffer) {
  Scratch s;
  s.scores = static_cast<float*>(buffer);
  s.weights = reinterpret_cast<uint16_t*>(s.scores + kRowBlock * kKeyBlock);
  s.sums = reinterpret_cast<float*>(s.weights + kRowBlock * kKeyBlock);
  s.queries = reinterpret_cast<uint16_t*>(s.sums + 2 * shape.width_tiles * kTileFloats);
  s.bias = reinterpret_cast<float*>(s.queries + 2 * shape.depth_tiles * kTileHalves);
  s.largest = s.bias + kKeyBlock;
  return s;
}

// Asks for a row of `count` elements to be brought into the second-level cache, for reading or for writing: the
// hardware foresees no strides of this size.
template <int kForWriting>
inline void Prefetch(const void* row, int64_t count) {
  const char* first = static_cast<const char*>(row);
  for (int64_t at = 0; at < 2 * count; at += 64) __builtin_prefetch(first + at, kForWriting, 2);
  __builtin_prefetch(first + 2 * count - 1, kForWriting, 2);
}

constexpr int64_t kAhead = 16;  // rows

// The order in which PackWeights leaves the keys of a step, 8 × lane + i: four of the lower 16, then four of the upper.
inline int64_t KeyOfPlace(int64_t place) {
  const int64_t lane = place % kDepth / 8;
  const int64_t i = place % 8;
  return place / kDepth * kDepth + lane * 4 + (i < 4 ? i : 12 + i);
}

// 16 columns of one key's values, the column of ones included, each in 32 bits. Zero for a key of the padding.
inline __m512i ValueColumns(const AttentionHead& head, int64_t key, int64_t column) {
  constexpr uint32_t kOne = 0x3f80;
  if (key >= head.key_count) return _mm512_setzero_si512();
  const int64_t rest = head.head_dim - column;
  const __mmask16 mask = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1u << rest) - 1);
  const uint16_t* from = static_cast<const uint16_t*>(head.v) + head.keys[key] * head.v_stride + column;
  const __m512i values = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  if (rest >= 16) return values;
  return _mm512_mask_set1_epi32(values, static_cast<__mmask16>(1u << rest), kOne);
}

void PackHead(const AttentionHead& head, void* buffer) {
  const Shape shape = ShapeOf(head.key_count, head.head_dim);
  const int64_t d = head.head_dim;
  uint16_t* keys = static_cast<uint16_t*>(buffer);
  __builtin_memset(buffer, 0, PackedBytes(head.key_count, d));
  const uint16_t* k = static_cast<const uint16_t*>(head.k);
  for (int64_t key = 0; key < head.key_count; ++key) {
    if (key + kAhead < head.key_count) Prefetch<0>(k + head.keys[key + kAhead] * head.k_stride, d);
    const uint16_t* from = k + head.keys[key] * head.k_stride;
    uint16_t* to = keys + key / kTileRows * shape.depth_tiles * kTileHalves + key % kTileRows * 2;
    for (int64_t c = 0; c + 1 < d; c += 2) __builtin_memcpy(to + c / 2 * 32, from + c, 4);
    if (d % 2 != 0) to[d / 2 * 32] = from[d - 1];
  }
  uint16_t* values = keys + KeyHalves(shape);
  for (int64_t place = 0; place < shape.key_steps * kDepth; place += 2) {
    const int64_t even = KeyOfPlace(place);
    const int64_t odd = even + 1;
    for (int64_t ahead = even + kDepth; ahead < Min(even + kDepth + 2, head.key_count); ++ahead) {
      Prefetch<0>(static_cast<const uint16_t*>(head.v) + head.keys[ahead] * head.v_stride, d);
    }
    uint16_t* to = values + place / kDepth * shape.width_tiles * kTileHalves + place % kDepth * 16;
    for (int64_t c = 0; c <= d; c += kTileRows) {
      const __m512i low = ValueColumns(head, even, c);
      const __m512i high = ValueColumns(head, odd, c);
      _mm512_store_si512(to + c / kTileRows * kTileHalves, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

void PackQueries(const AttentionHead& head, int64_t first, int64_t rows, const Shape& shape, const Scratch& s) {
  __builtin_memset(s.queries, 0, 2 * shape.depth_tiles * kTileBytes);
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* from = static_cast<const uint16_t*>(head.q) + (first + row) * head.q_stride;
    uint16_t* to = s.queries + row / kTileRows * shape.depth_tiles * kTileHalves + row % kTileRows * kDepth;
    for (int64_t c = 0; c < head.head_dim; c += kDepth) {
      const int64_t rest = head.head_dim - c;
      const __mmask32 mask = static_cast<__mmask32>(rest >= 32 ? 0xffffffffu : (1u << rest) - 1);
      _mm512_store_si512(to + c / kDepth * kTileHalves, _mm512_maskz_loadu_epi16(mask, from + c));
    }
  }
}

// Scores of 32 rows and 32 keys.
inline void ScoreTiles(const uint16_t* queries, const uint16_t* keys, int64_t depth_tiles, float* scores) {
  const uint16_t* lower_queries = queries + depth_tiles * kTileHalves;
  const uint16_t* right_keys = keys + depth_tiles * kTileHalves;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t depth = 0; depth < depth_tiles; ++depth) {
    _tile_loadd(4, queries + depth * kTileHalves, 64);
    _tile_loadd(6, keys + depth * kTileHalves, 64);
    _tile_loadd(7, right_keys + depth * kTileHalves, 64);
    _tile_loadd(5, lower_queries + depth * kTileHalves, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, scores, kKeyBlock * 4);
  _tile_stored(1, scores + kTileRows, kKeyBlock * 4);
  _tile_stored(2, scores + kTileRows * kKeyBlock, kKeyBlock * 4);
  _tile_stored(3, scores + kTileRows * kKeyBlock + kTileRows, kKeyBlock * 4);
}

// Adds weights × values of one key block to two tiles' width of sums, for both tile rows.
inline void ValueTilePair(const Scratch& s, const uint16_t* values, int64_t steps, int64_t width_tiles,
                          int64_t column) {
  constexpr int64_t kLowerWeights = kKeyBlock / kDepth * kTileHalves;
  float* sums = s.sums + column * kTileFloats;
  float* lower_sums = sums + width_tiles * kTileFloats;
  _tile_loadd(0, sums, 64);
  _tile_loadd(1, sums + kTileFloats, 64);
  _tile_loadd(2, lower_sums, 64);
  _tile_loadd(3, lower_sums + kTileFloats, 64);
  for (int64_t step = 0; step < steps; ++step) {
    const uint16_t* value = values + (step * width_tiles + column) * kTileHalves;
    _tile_loadd(4, s.weights + step * kTileHalves, 64);
    _tile_loadd(6, value, 64);
    _tile_loadd(7, value + kTileHalves, 64);
    _tile_loadd(5, s.weights + kLowerWeights + step * kTileHalves, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileFloats, 64);
  _tile_stored(2, lower_sums, 64);
  _tile_stored(3, lower_sums + kTileFloats, 64);
}

inline void ValueTile(const Scratch& s, const uint16_t* values, int64_t steps, int64_t width_tiles, int64_t column) {
  constexpr int64_t kLowerWeights = kKeyBlock / kDepth * kTileHalves;
  float* sums = s.sums + column * kTileFloats;
  float* lower_sums = sums + width_tiles * kTileFloats;
  _tile_loadd(0, sums, 64);
  _tile_loadd(2, lower_sums, 64);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, s.weights + step * kTileHalves, 64);
    _tile_loadd(6, values + (step * width_tiles + column) * kTileHalves, 64);
    _tile_loadd(5, s.weights + kLowerWeights + step * kTileHalves, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(2, lower_sums, 64);
}

// The seven mantissa bits of 2^(i / 128) as bf16, by i.
struct alignas(64) Mantissas {
  uint8_t bits[128];
};

constexpr Mantissas MakeMantissas() {
  constexpr double kStep = 1.0054299011128028;  // 2^(1/128)
  Mantissas table = {};
  double power = 1;
  for (uint8_t& bits : table.bits) {
    bits = static_cast<uint8_t>((power - 1) * 128 + 0.5);
    power *= kStep;
  }
  return table;
}

constexpr Mantissas kMantissas = MakeMantissas();

// A power of two is put together as bf16 bits: exponent + 127 and mantissa are the whole part and the 7 fraction bits
// of a fixed-point number, but for the mantissa's curve, which comes from the table. The error is at most 2^(1/256) of
// the fixed-point rounding and the 2^-8 of bf16. Input: exponents times 128, plus kOneAsFixedPoint; 0 or less gives 0.
constexpr float kFixedPoint = 128;
constexpr float kOneAsFixedPoint = 127 * kFixedPoint;

inline __m512i PackWeights(__m512 low, __m512 high, __m512i lower_mantissas, __m512i upper_mantissas) {
  const __m512i fixed = _mm512_packus_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
  const __m512i mantissa = _mm512_permutex2var_epi8(lower_mantissas, fixed, upper_mantissas);
  constexpr int kThirdSelectsSecond = 0xca;  // bit by bit: a ? b : c
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x7f), mantissa, fixed, kThirdSelectsSecond);
}

// Multiplies a row's sums by 2^exponent.
inline void ScaleSums(const Scratch& s, int64_t row, int64_t width_tiles, float exponent) {
  float* sums = s.sums + row / kTileRows * width_tiles * kTileFloats + row % kTileRows * 16;
  const __m512 whole = _mm512_set1_ps(exponent);
  for (int64_t column = 0; column < width_tiles; ++column) {
    float* at = sums + column * kTileFloats;
    _mm512_store_ps(at, _mm512_scalef_ps(_mm512_load_ps(at), whole));
  }
}

// The largest lane of each of 16 vectors, in their order.
inline __m512 LargestOfEach(const __m512* rows) {
  __m512 pairs[8];
  for (int i = 0; i < 8; ++i) {
    pairs[i] = _mm512_max_ps(_mm512_shuffle_f32x4(rows[i], rows[i + 8], 0x44),
                             _mm512_shuffle_f32x4(rows[i], rows[i + 8], 0xee));
  }
  __m512 fours[4];  // in 128-bit lanes: rows i, i + 8, i + 4, i + 12
  for (int i = 0; i < 4; ++i) {
    fours[i] = _mm512_max_ps(_mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0x88),
                             _mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0xdd));
  }
  __m512 eights[2];
  for (int i = 0; i < 2; ++i) {
    eights[i] =
        _mm512_max_ps(_mm512_shuffle_ps(fours[i], fours[i + 2], 0x44), _mm512_shuffle_ps(fours[i], fours[i + 2], 0xee));
  }
  const __m512 largest =
      _mm512_max_ps(_mm512_shuffle_ps(eights[0], eights[1], 0x88), _mm512_shuffle_ps(eights[0], eights[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, largest);
}

// Turns one tile row's scores of one key block into weights 2^(score - running maximum), and rescales what was summed
// before. The running maxima are rounded up to whole numbers, so that rescaling is exact. `bias` is in units of log 2
// and covers all of `steps` × 32 keys, or is null.
inline void SoftmaxTile(const Scratch& s, const float* bias, int64_t tile, int64_t steps, int64_t width_tiles,
                        float factor) {
  const int64_t count = steps * kDepth;
  float* scores = s.scores + tile * kTileRows * kKeyBlock;
  __m512 top[kTileRows];
  for (int64_t row = 0; row < kTileRows; ++row) {
    float* at = scores + row * kKeyBlock;
    if (bias != nullptr) {
      top[row] = _mm512_set1_ps(kLowest);
      for (int64_t key = 0; key < count; key += 16) {
        const __m512 biased =
            _mm512_fmadd_ps(_mm512_load_ps(at + key), _mm512_set1_ps(factor), _mm512_load_ps(bias + key));
        _mm512_store_ps(at + key, biased);
        top[row] = _mm512_max_ps(top[row], biased);
      }
    } else {
      top[row] = _mm512_load_ps(at);
      for (int64_t key = 16; key < count; key += 16) top[row] = _mm512_max_ps(top[row], _mm512_load_ps(at + key));
    }
  }
  if (bias != nullptr) factor = 1;
  float* largest = s.largest + tile * kTileRows;
  const __m512 block_largest = _mm512_mul_ps(LargestOfEach(top), _mm512_set1_ps(factor));
  const __m512 before = _mm512_load_ps(largest);
  const __m512 after = _mm512_max_ps(_mm512_roundscale_ps(block_largest, _MM_FROUND_TO_POS_INF), before);
  alignas(64) float change[kTileRows];
  _mm512_store_ps(change, _mm512_sub_ps(before, after));
  for (uint32_t grown = _mm512_cmp_ps_mask(after, before, _CMP_GT_OQ); grown != 0; grown &= grown - 1) {
    const int64_t row = __builtin_ctz(grown);
    ScaleSums(s, tile * kTileRows + row, width_tiles, change[row]);
  }
  _mm512_store_ps(largest, after);
  alignas(64) float shift[kTileRows];
  _mm512_store_ps(shift, _mm512_fnmadd_ps(after, _mm512_set1_ps(kFixedPoint), _mm512_set1_ps(kOneAsFixedPoint)));
  const __m512 scale = _mm512_set1_ps(factor * kFixedPoint);
  const __m512i lower_mantissas = _mm512_load_si512(kMantissas.bits);
  const __m512i upper_mantissas = _mm512_load_si512(kMantissas.bits + 64);
  uint16_t* weights = s.weights + tile * (kKeyBlock / kDepth) * kTileHalves;
  for (int64_t row = 0; row < kTileRows; ++row) {
    const __m512 row_shift = _mm512_set1_ps(shift[row]);
    const float* from = scores + row * kKeyBlock;
    for (int64_t step = 0; step < steps; ++step, from += kDepth) {
      const __m512 low = _mm512_fmadd_ps(_mm512_load_ps(from), scale, row_shift);
      const __m512 high = _mm512_fmadd_ps(_mm512_load_ps(from + 16), scale, row_shift);
      _mm512_store_si512(weights + step * kTileHalves + row * kDepth,
                         PackWeights(low, high, lower_mantissas, upper_mantissas));
    }
  }
}

void StoreRows(const AttentionHead& head, int64_t first, int64_t rows, const Shape& shape, const Scratch& s) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* sums = s.sums + row / kTileRows * shape.width_tiles * kTileFloats + row % kTileRows * 16;
    const float total = sums[head.head_dim / 16 * kTileFloats + head.head_dim % 16];
    const __m512 reciprocal = _mm512_set1_ps(1.0f / total);
    uint16_t* out = static_cast<uint16_t*>(head.out) + (first + row) * head.out_stride;
    for (int64_t column = 0; column < Tiles(head.head_dim, kTileRows); ++column) {
      const __m512 y = _mm512_mul_ps(_mm512_load_ps(sums + column * kTileFloats), reciprocal);
      const int64_t rest = head.head_dim - column * 16;
      const __mmask16 mask = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1u << rest) - 1);
      _mm256_mask_storeu_epi16(out + column * 16, mask, (__m256i)_mm512_cvtneps_pbh(y));
    }
  }
}

// The block's biases in units of log 2, the padding's out of reach; null where the block has neither.
const float* BlockBias(const AttentionHead& head, int64_t key, int64_t count, int64_t padded, float* buffer) {
  if (head.bias == nullptr && count == padded) return nullptr;
  for (int64_t i = 0; i < padded; ++i) {
    const float bias = head.bias == nullptr ? 0.0f : (i < count ? head.bias[key + i] * kLog2E : 0.0f);
    buffer[i] = i >= count || bias < kLowest ? kLowest : bias;
  }
  return buffer;
}

void AttendRows(const AttentionHead& head, int64_t first_row, int64_t last_row, const void* packed, void* buffer) {
  const Shape shape = ShapeOf(head.key_count, head.head_dim);
  const Scratch s = Carve(shape, buffer);
  const uint16_t* keys = static_cast<const uint16_t*>(packed);
  const uint16_t* values = keys + KeyHalves(shape);
  const TileConfig config;
  _tile_loadconfig(&config);
  for (int64_t first = first_row; first < last_row; first += kRowBlock) {
    const int64_t rows = Min(kRowBlock, last_row - first);
    PackQueries(head, first, rows, shape, s);
    for (int64_t row = first; row < first + rows; ++row) {
      if (row + kRowBlock < last_row) {
        Prefetch<0>(static_cast<const uint16_t*>(head.q) + (row + kRowBlock) * head.q_stride, head.head_dim);
      }
      Prefetch<1>(static_cast<const uint16_t*>(head.out) + row * head.out_stride, head.head_dim);
    }
    __builtin_memset(s.sums, 0, 2 * shape.width_tiles * kTileBytes);
    for (int64_t row = 0; row < kRowBlock; ++row) s.largest[row] = kLowest;
    for (int64_t key = 0; key < head.key_count; key += kKeyBlock) {
      const int64_t count = Min(kKeyBlock, head.key_count - key);
      const int64_t steps = Tiles(count, kDepth);
      const uint16_t* block_keys = keys + key / kTileRows * shape.depth_tiles * kTileHalves;
      for (int64_t step = 0; step < steps; ++step) {
        ScoreTiles(s.queries, block_keys + step * 2 * shape.depth_tiles * kTileHalves, shape.depth_tiles,
                   s.scores + step * kDepth);
      }
      const float* bias = BlockBias(head, key, count, steps * kDepth, s.bias);
      for (int64_t tile = 0; tile < Tiles(rows, kTileRows); ++tile) {
        SoftmaxTile(s, bias, tile, steps, shape.width_tiles, head.scale * kLog2E);
      }
      const uint16_t* block_values = values + key / kDepth * shape.width_tiles * kTileHalves;
      int64_t column = 0;
      for (; column + 1 < shape.width_tiles; column += 2) {
        ValueTilePair(s, block_values, steps, shape.width_tiles, column);
      }
      if (column < shape.width_tiles) ValueTile(s, block_values, steps, shape.width_tiles, column);
    }
    StoreRows(head, first, rows, shape, s);
  }
  _tile_release();
}

void Pack(Element, const AttentionHead& head, void* packed) { PackHead(head, packed); }

void Attend(Element, const AttentionHead& head, int64_t first_row, int64_t last_row, const void* packed,
            void* scratch) {
  AttendRows(head, first_row, last_row, packed, scratch);
}

}  // namespace

const AttentionKernels kAttentionAmx = {
    .packed_bytes = PackedBytes,
    .scratch_bytes = ScratchBytes,
    .pack = Pack,
    .attend = Attend,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never names tiles here.
const AttentionKernels kAttentionAmx = {};

}  // namespace tessera::kernels::cpu

#endif
