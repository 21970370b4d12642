// Attention for bf16 with AMX tiles: products in tiles with fp32 sums, softmax in fp32 with AVX-512.
//
// A tile is 16 rows of 64 bytes. Operand A holds 16 rows × 32 bf16; operand B holds 32 rows × 16 columns with row pairs
// interleaved; a product adds to 16 × 16 fp32 (Intel SDM volume 1, chapter 18). Everything is stored tile by tile, 1
// KiB each:
//   keys    [16 keys][32 channels]   B of the first product
//   values  [32 keys][16 channels]   B of the second product
//   queries [16 rows][32 channels]   A of the first product
//   weights [16 rows][32 keys]       A of the second product
//   sums    [16 rows][16 channels]   fp32
// A row block is two tiles high; each pair of B tiles is used for both. The values have one more column of ones, so
// that the last column of the sums is the sum of the weights.
//
// Weights are 2^(score - the row's exponent). A row's exponent is an integer, so that rescaling is exact, and changes
// only when a score is far above it, so that scores are read once. While one step's scores are turned into weights, the
// scores of the next step are computed.

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
constexpr int64_t kKeyBlock = 256;
constexpr float kLog2E = 1.442695041f;
constexpr float kLowest = -1e30f;  // below every real score; finite, so that differences are never NaN

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Tiles(int64_t length, int64_t step) { return (length + step - 1) / step; }

struct Shape {
  int64_t depth_tiles;  // number of tiles over head_dim as the summed dimension
  int64_t width_tiles;  // number of tiles over head_dim and the column of ones
  int64_t key_steps;    // number of steps over keys as the summed dimension
};

inline Shape ShapeOf(int64_t key_count, int64_t head_dim) {
  return {Tiles(head_dim, kDepth), Tiles(head_dim + 1, kTileRows), Tiles(key_count, kDepth)};
}

// Keys are padded to a multiple of kDepth, so there are twice as many tiles of 16 keys as steps of 32.
inline int64_t KeyHalves(const Shape& shape) { return shape.key_steps * 2 * shape.depth_tiles * kTileHalves; }

int64_t PackedBytes(int64_t key_count, int64_t head_dim) {
  const Shape shape = ShapeOf(key_count, head_dim);
  return 2 * KeyHalves(shape) + shape.key_steps * shape.width_tiles * kTileBytes;
}

struct Scratch {
  float* scores;       // [2][kRowBlock][kDepth], one of this step and one of the next
  uint16_t* weights;   // [2][kKeyBlock / kDepth] tiles
  float* sums;         // [2][width_tiles] tiles
  uint16_t* queries;   // [2][depth_tiles] tiles
  float* bias;         // [kKeyBlock]
  float* exponents;    // [kRowBlock], integers
  float* fixed_zeros;  // [kRowBlock], the fixed-point value of a score of zero
};

constexpr int64_t kStepFloats = kRowBlock * kDepth;
constexpr int64_t kBlockHalves = kKeyBlock / kDepth * kTileHalves;  // weights of one tile row

int64_t ScratchBytes(int64_t, int64_t head_dim) {
  const Shape shape = ShapeOf(1, head_dim);
  return 4 * (2 * kStepFloats + kBlockHalves + kKeyBlock + 2 * kRowBlock) +
         2 * (shape.width_tiles + shape.depth_tiles) * kTileBytes;
}

inline Scratch Carve(const Shape& shape, void* buffer) {
  Scratch s;
  s.scores = static_cast<float*>(buffer);
  s.weights = reinterpret_cast<uint16_t*>(s.scores + 2 * kStepFloats);
  s.sums = reinterpret_cast<float*>(s.weights + 2 * kBlockHalves);
  s.queries = reinterpret_cast<uint16_t*>(s.sums + 2 * shape.width_tiles * kTileFloats);
  s.bias = reinterpret_cast<float*>(s.queries + 2 * shape.depth_tiles * kTileHalves);
  s.exponents = s.bias + kKeyBlock;
  s.fixed_zeros = s.exponents + kRowBlock;
  return s;
}

// Prefetches a row of `count` elements into the second-level cache, for reading or for writing, because the hardware
// does not predict strides of this size.
template <int kForWriting>
inline void Prefetch(const void* row, int64_t count) {
  const char* first = static_cast<const char*>(row);
  for (int64_t at = 0; at < 2 * count; at += 64) __builtin_prefetch(first + at, kForWriting, 2);
  __builtin_prefetch(first + 2 * count - 1, kForWriting, 2);
}

// Returns the key at a place of the order in which PackWeights writes a step. Place 8 × lane + i holds four of the
// lower 16 keys, then four of the upper 16.
inline int64_t KeyOfPlace(int64_t place) {
  const int64_t lane = place % kDepth / 8;
  const int64_t i = place % 8;
  return place / kDepth * kDepth + lane * 4 + (i < 4 ? i : 12 + i);
}

// Returns 16 columns of one key's values, including the column of ones, each in 32 bits. Zero for padding keys.
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

// Transposes 16 rows of 16 words of 32 bits. Each round interleaves every row of the upper half with one of the lower
// half; after log2(16) rounds the matrix is transposed.
inline void Transpose(__m512i* rows) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int round = 0; round < 4; ++round) {
    __m512i mixed[kTileRows];
    for (int i = 0; i < kTileRows / 2; ++i) {
      mixed[2 * i] = _mm512_permutex2var_epi32(rows[i], low, rows[i + kTileRows / 2]);
      mixed[2 * i + 1] = _mm512_permutex2var_epi32(rows[i], high, rows[i + kTileRows / 2]);
    }
    for (int i = 0; i < kTileRows; ++i) rows[i] = mixed[i];
  }
}

void PackHead(const AttentionHead& head, void* buffer) {
  const Shape shape = ShapeOf(head.key_count, head.head_dim);
  const int64_t d = head.head_dim;
  uint16_t* keys = static_cast<uint16_t*>(buffer);
  const uint16_t* k = static_cast<const uint16_t*>(head.k);
  for (int64_t first = 0; first < shape.key_steps * kDepth; first += kTileRows) {
    for (int64_t key = first + kTileRows; key < Min(first + 2 * kTileRows, head.key_count); ++key) {
      Prefetch<0>(k + head.keys[key] * head.k_stride, d);
    }
    for (int64_t c = 0; c < d; c += kDepth) {
      const __mmask32 lanes = static_cast<__mmask32>(d - c >= kDepth ? 0xffffffffu : (1u << (d - c)) - 1);
      __m512i rows[kTileRows];
      for (int64_t i = 0; i < kTileRows; ++i) {
        rows[i] = first + i < head.key_count
                      ? _mm512_maskz_loadu_epi16(lanes, k + head.keys[first + i] * head.k_stride + c)
                      : _mm512_setzero_si512();
      }
      Transpose(rows);
      uint16_t* to = keys + (first / kTileRows * shape.depth_tiles + c / kDepth) * kTileHalves;
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_si512(to + i * kDepth, rows[i]);
    }
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

// Computes scores of 32 rows and 32 keys. Calls `meanwhile()` once for each tile of the depth.
template <typename Meanwhile>
inline void ScoreTiles(const uint16_t* queries, const uint16_t* keys, int64_t depth_tiles, float* scores,
                       Meanwhile meanwhile) {
  const uint16_t* lower_queries = queries + depth_tiles * kTileHalves;
  const uint16_t* right_keys = keys + depth_tiles * kTileHalves;
  BeforeTileLoads();
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
    meanwhile();
  }
  _tile_stored(0, scores, kDepth * 4);
  _tile_stored(1, scores + kTileRows, kDepth * 4);
  _tile_stored(2, scores + kTileRows * kDepth, kDepth * 4);
  _tile_stored(3, scores + kTileRows * kDepth + kTileRows, kDepth * 4);
}

// Adds weights × values of one key block to sums two tiles wide, for both tile rows.
inline void ValueTilePair(const Scratch& s, const uint16_t* values, int64_t steps, int64_t width_tiles,
                          int64_t column) {
  float* sums = s.sums + column * kTileFloats;
  float* lower_sums = sums + width_tiles * kTileFloats;
  BeforeTileLoads();
  _tile_loadd(0, sums, 64);
  _tile_loadd(1, sums + kTileFloats, 64);
  _tile_loadd(2, lower_sums, 64);
  _tile_loadd(3, lower_sums + kTileFloats, 64);
  for (int64_t step = 0; step < steps; ++step) {
    const uint16_t* value = values + (step * width_tiles + column) * kTileHalves;
    _tile_loadd(4, s.weights + step * kTileHalves, 64);
    _tile_loadd(6, value, 64);
    _tile_loadd(7, value + kTileHalves, 64);
    _tile_loadd(5, s.weights + kBlockHalves + step * kTileHalves, 64);
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
  float* sums = s.sums + column * kTileFloats;
  float* lower_sums = sums + width_tiles * kTileFloats;
  BeforeTileLoads();
  _tile_loadd(0, sums, 64);
  _tile_loadd(2, lower_sums, 64);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, s.weights + step * kTileHalves, 64);
    _tile_loadd(6, values + (step * width_tiles + column) * kTileHalves, 64);
    _tile_loadd(5, s.weights + kBlockHalves + step * kTileHalves, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(2, lower_sums, 64);
}

// The seven mantissa bits of 2^(i / 128) as bf16, indexed by i.
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

// Computes a power of two by assembling bf16 bits. The integer part of a fixed-point number gives exponent + 127, and
// its 7 fraction bits select the mantissa from the table. The error is at most 2^(1/256) of the fixed-point rounding
// and the 2^-8 of bf16. Input: exponents times 128, plus kOneAsFixedPoint; 0 or less gives 0.
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

// A score may exceed its row's exponent by this much; sums of weights that large are far from overflow in fp32.
constexpr float kHeadroom = 16;

// One step of 32 keys. `factor` turns products into scores in units of log 2, which are also the units of `bias`.
struct Step {
  int64_t index;        // within its block
  const float* scores;  // [kRowBlock][kDepth], the products
  const float* bias;    // or null
  float factor;
};

// Returns 16 scores of a row as fixed-point numbers, not yet rounded.
template <bool kBias>
inline __m512 FixedPoint(const Step& step, int64_t row, int64_t key, __m512 scale, __m512 zero) {
  const __m512 x = _mm512_fmadd_ps(_mm512_load_ps(step.scores + row * kDepth + key), scale, zero);
  if constexpr (!kBias) return x;
  return _mm512_fmadd_ps(_mm512_load_ps(step.bias + key), _mm512_set1_ps(kFixedPoint), x);
}

// Turns the scores of rows [first, last) into weights. Returns the lane-wise maximum of `largest` and the fixed-point
// numbers.
template <bool kBias>
inline __m512 WeighRows(const Scratch& s, const Step& step, int64_t first, int64_t last, __m512 largest) {
  const __m512 scale = _mm512_set1_ps(step.factor * kFixedPoint);
  const __m512i lower_mantissas = _mm512_load_si512(kMantissas.bits);
  const __m512i upper_mantissas = _mm512_load_si512(kMantissas.bits + 64);
  for (int64_t row = first; row < last; ++row) {
    const __m512 zero = _mm512_set1_ps(s.fixed_zeros[row]);
    const __m512 low = FixedPoint<kBias>(step, row, 0, scale, zero);
    const __m512 high = FixedPoint<kBias>(step, row, kTileRows, scale, zero);
    largest = _mm512_max_ps(high, _mm512_max_ps(low, largest));  // if an operand is NaN, the second is returned
    _mm512_store_si512(s.weights + row / kTileRows * kBlockHalves + step.index * kTileHalves + row % kTileRows * kDepth,
                       PackWeights(low, high, lower_mantissas, upper_mantissas));
  }
  return largest;
}

// Raises the exponent of each row with a score out of reach to its largest score, rescales the row's sums and earlier
// weights accordingly, and recomputes the step's weights.
template <bool kBias>
__attribute__((noinline)) void RaiseExponents(const Scratch& s, const Step& step, int64_t width_tiles) {
  for (int64_t row = 0; row < kRowBlock; ++row) {
    const __m512 factor = _mm512_set1_ps(step.factor);
    const float* scores = step.scores + row * kDepth;
    __m512 low = _mm512_mul_ps(_mm512_load_ps(scores), factor);
    __m512 high = _mm512_mul_ps(_mm512_load_ps(scores + kTileRows), factor);
    if constexpr (kBias) {
      low = _mm512_add_ps(low, _mm512_load_ps(step.bias));
      high = _mm512_add_ps(high, _mm512_load_ps(step.bias + kTileRows));
    }
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(low, high));
    if (!(largest > s.exponents[row] + kHeadroom)) continue;
    const float exponent = __builtin_ceilf(largest), change = s.exponents[row] - exponent;
    ScaleSums(s, row, width_tiles, change);
    uint16_t* weights = s.weights + row / kTileRows * kBlockHalves + row % kTileRows * kDepth;
    for (int64_t before = 0; before < step.index; ++before, weights += kTileHalves) {
      for (int64_t key = 0; key < kDepth; key += kTileRows) {
        __m256i* at = reinterpret_cast<__m256i*>(weights + key);
        const __m512 wide = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(at)), 16);
        _mm256_store_si256(at, (__m256i)_mm512_cvtneps_pbh(_mm512_scalef_ps(wide, _mm512_set1_ps(change))));
      }
    }
    s.exponents[row] = exponent;
    s.fixed_zeros[row] = kOneAsFixedPoint - exponent * kFixedPoint;
    WeighRows<kBias>(s, step, row, row + 1, _mm512_setzero_ps());
  }
}

// Turns a step's scores into weights. If `next_keys` is not null, the products with those keys are computed into
// `next_scores` at the same time; a fourth of the rows is processed while the product tiles are stored.
template <bool kBias>
inline void WeighStep(const Scratch& s, const Shape& shape, const Step& step, const uint16_t* next_keys,
                      float* next_scores) {
  __m512 largest = _mm512_setzero_ps();
  int64_t done = 0;
  if (next_keys != nullptr) {
    const int64_t share = kRowBlock * 3 / 4 / shape.depth_tiles;
    ScoreTiles(
        s.queries, next_keys, shape.depth_tiles, next_scores, [&]() __attribute__((always_inline)) {
          largest = WeighRows<kBias>(s, step, done, done + share, largest);
          done += share;
        });
  }
  largest = WeighRows<kBias>(s, step, done, kRowBlock, largest);
  const __m512 reach = _mm512_set1_ps(kOneAsFixedPoint + kHeadroom * kFixedPoint);
  if (_mm512_cmp_ps_mask(largest, reach, _CMP_GT_OQ) != 0) RaiseExponents<kBias>(s, step, shape.width_tiles);
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

// Returns the block's biases in units of log 2, with padding keys at kLowest, or null if there are no biases and no
// padding.
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
  LoadTileConfig(config);
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
    for (int64_t row = 0; row < kRowBlock; ++row) {
      s.exponents[row] = kLowest;
      s.fixed_zeros[row] = __builtin_inff();  // out of reach, so that the first step sets the exponent
    }
    ScoreTiles(s.queries, keys, shape.depth_tiles, s.scores, [] {});
    for (int64_t key = 0; key < head.key_count; key += kKeyBlock) {
      const int64_t count = Min(kKeyBlock, head.key_count - key);
      const int64_t steps = Tiles(count, kDepth);
      const float* bias = BlockBias(head, key, count, steps * kDepth, s.bias);
      for (int64_t index = 0; index < steps; ++index) {
        const int64_t at = key / kDepth + index;
        const Step step{.index = index,
                        .scores = s.scores + at % 2 * kStepFloats,
                        .bias = bias == nullptr ? nullptr : bias + index * kDepth,
                        .factor = head.scale * kLog2E};
        const uint16_t* next_keys =
            at + 1 < shape.key_steps ? keys + (at + 1) * 2 * shape.depth_tiles * kTileHalves : nullptr;
        float* next_scores = s.scores + (at + 1) % 2 * kStepFloats;
        if (bias != nullptr) {
          WeighStep<true>(s, shape, step, next_keys, next_scores);
        } else {
          WeighStep<false>(s, shape, step, next_keys, next_scores);
        }
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

// BestIsa() never returns an instruction set with tiles in this build.
const AttentionKernels kAttentionAmx = {};

}  // namespace tessera::kernels::cpu

#endif
