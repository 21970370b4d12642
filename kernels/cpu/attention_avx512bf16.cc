// Attention for bf16 in pairs: both products multiply pairs of bf16 and sum in fp32, softmax in fp32.
//
// Keys are packed into panels of kPanel keys, [panel][head_dim / 2][kPanel][2]; values into pairs of rows of whole
// vectors, [key / 2][padded head_dim][2]; what is odd is padded with zeros. A block of kRowBlock queries meets
// kKeyBlock keys at a time; both products keep a rectangle of sums in registers. The weights are rounded to bf16 for
// the second product, and summed up before they are.

#include <cstdint>

#include "kernels/cpu/attention.h"

#if defined(__x86_64__) && defined(__AVX512BF16__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"

constexpr int kPanelVectors = 3;
constexpr int kPanel = kPanelVectors * kLanes;
constexpr int kKeyBlock = 8 * kPanel;
constexpr int kRowBlock = 40;  // a multiple of every row count below
constexpr int kScoreRows = 8;  // rows × kPanelVectors sums: 24 of 32 registers
constexpr int kMaxValueVectors = 5;
constexpr float kLog2E = 1.442695041f;
constexpr float kLowest = -1e30f;  // a score below every real one, finite so that differences stay numbers

constexpr int ValueRows(int vectors) { return vectors <= 3 ? 8 : 5; }

inline __m512bh PairOf(const uint16_t* from) {
  int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

inline __m512bh LoadPairs(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }

struct Packed {
  uint16_t* keys;
  uint16_t* values;
  int64_t depth;  // head_dim, padded to pairs
  int64_t width;  // head_dim, padded to vectors
};

inline Packed Layout(const AttentionHead& head, void* packed) {
  uint16_t* keys = static_cast<uint16_t*>(packed);
  const int64_t depth = RoundUp(head.head_dim, 2);
  return {keys, keys + RoundUp(head.key_count, kPanel) * depth, depth, RoundUp(head.head_dim, kLanes)};
}

int64_t PackedBytes(int64_t key_count, int64_t head_dim) {
  return 2 * (RoundUp(key_count, kPanel) * RoundUp(head_dim, 2) + RoundUp(key_count, 2) * RoundUp(head_dim, kLanes)) +
         64;
}

struct Scratch {
  float* scores;      // [kRowBlock][kKeyBlock]
  float* sums;        // [kRowBlock][width]
  float* largest;     // [kRowBlock]
  float* totals;      // [kRowBlock]
  uint16_t* weights;  // [kRowBlock][kKeyBlock]
  uint16_t* queries;  // [kRowBlock][depth]
};

inline Scratch Carve(const Packed& packed, void* scratch) {
  Scratch s;
  s.scores = static_cast<float*>(scratch);
  s.sums = s.scores + kRowBlock * kKeyBlock;
  s.largest = s.sums + kRowBlock * packed.width;
  s.totals = s.largest + kRowBlock;
  s.weights = reinterpret_cast<uint16_t*>(s.totals + kRowBlock);
  s.queries = s.weights + kRowBlock * kKeyBlock;
  return s;
}

int64_t ScratchBytes(int64_t, int64_t head_dim) {
  return kRowBlock * (6 * kKeyBlock + 4 * RoundUp(head_dim, kLanes) + 8 + 2 * RoundUp(head_dim, 2));
}

void Pack(Element, const AttentionHead& head, void* buffer) {
  const Packed packed = Layout(head, buffer);
  const int64_t d = head.head_dim;
  const uint16_t* k = static_cast<const uint16_t*>(head.k);
  const uint16_t* v = static_cast<const uint16_t*>(head.v);
  constexpr int64_t kAhead = 16;
  __builtin_memset(packed.keys, 0, 2 * RoundUp(head.key_count, kPanel) * packed.depth);
  for (int64_t key = 0; key < head.key_count; ++key) {
    if (key + kAhead < head.key_count) Prefetch(k + head.keys[key + kAhead] * head.k_stride, d);
    const uint16_t* from = k + head.keys[key] * head.k_stride;
    uint16_t* to = packed.keys + key / kPanel * kPanel * packed.depth + key % kPanel * 2;
    for (int64_t c = 0; c + 1 < d; c += 2) __builtin_memcpy(to + c * kPanel, from + c, 4);
    if (d % 2 != 0) to[(d - 1) * kPanel] = from[d - 1];
  }
  for (int64_t key = 0; key < head.key_count; key += 2) {
    for (int64_t ahead = key + kAhead; ahead < Min(key + kAhead + 2, head.key_count); ++ahead) {
      Prefetch(v + head.keys[ahead] * head.v_stride, d);
    }
    const uint16_t* even = v + head.keys[key] * head.v_stride;
    const uint16_t* odd = key + 1 < head.key_count ? v + head.keys[key + 1] * head.v_stride : nullptr;
    uint16_t* to = packed.values + key * packed.width;
    for (int64_t c = 0; c < packed.width; c += kLanes) {
      const int64_t rest = d - c;
      const __mmask16 lanes = static_cast<__mmask16>(rest >= kLanes ? 0xffff : (1u << rest) - 1);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even + c));
      const __m512i high =
          odd == nullptr ? _mm512_setzero_si512() : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, odd + c));
      _mm512_storeu_si512(to + 2 * c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

// scores[row][0..kPanel) = queries[row] · keys of one panel, for kScoreRows rows.
inline void ScorePanel(const uint16_t* queries, const uint16_t* panel, int64_t depth, float* scores) {
  __m512 sum[kScoreRows][kPanelVectors];
  for (int row = 0; row < kScoreRows; ++row) {
    for (int i = 0; i < kPanelVectors; ++i) sum[row][i] = _mm512_setzero_ps();
  }
  for (int64_t c = 0; c < depth; c += 2) {
    __m512bh key[kPanelVectors];
    for (int i = 0; i < kPanelVectors; ++i) key[i] = LoadPairs(panel + c * kPanel + 2 * i * kLanes);
    for (int row = 0; row < kScoreRows; ++row) {
      const __m512bh query = PairOf(queries + row * depth + c);
      for (int i = 0; i < kPanelVectors; ++i) sum[row][i] = _mm512_dpbf16_ps(sum[row][i], query, key[i]);
    }
  }
  for (int row = 0; row < kScoreRows; ++row) {
    for (int i = 0; i < kPanelVectors; ++i) _mm512_storeu_ps(scores + row * kKeyBlock + i * kLanes, sum[row][i]);
  }
}

// sums[row][vectors] += weights[row] · values, for the rows of a block, ValueRows(kVectors) at a time, and `count`
// keys.
template <int kVectors>
void AddValues(int64_t rows, const uint16_t* weights, const uint16_t* values, int64_t width, int64_t count,
               float* sums) {
  constexpr int kRows = ValueRows(kVectors);
  for (int64_t first = 0; first < rows; first += kRows, weights += kRows * kKeyBlock, sums += kRows * width) {
    __m512 sum[kRows][kVectors];
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kVectors; ++i) sum[row][i] = _mm512_loadu_ps(sums + row * width + i * kLanes);
    }
    for (int64_t key = 0; key < count; key += 2) {
      __m512bh value[kVectors];
      for (int i = 0; i < kVectors; ++i) value[i] = LoadPairs(values + key * width + 2 * i * kLanes);
      for (int row = 0; row < kRows; ++row) {
        const __m512bh weight = PairOf(weights + row * kKeyBlock + key);
        for (int i = 0; i < kVectors; ++i) sum[row][i] = _mm512_dpbf16_ps(sum[row][i], weight, value[i]);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kVectors; ++i) _mm512_storeu_ps(sums + row * width + i * kLanes, sum[row][i]);
    }
  }
}

// The second product for a whole row block. Keys go in steps whose values stay in the first-level cache.
void AddBlockValues(int64_t rows, const Scratch& s, const uint16_t* values, int64_t width, int64_t count) {
  constexpr int64_t kStep = 192;
  using Add = void (*)(int64_t, const uint16_t*, const uint16_t*, int64_t, int64_t, float*);
  constexpr Add kAdd[] = {AddValues<1>, AddValues<2>, AddValues<3>, AddValues<4>, AddValues<5>};
  const int64_t vectors = width / kLanes, parts = (vectors + kMaxValueVectors - 1) / kMaxValueVectors;
  for (int64_t key = 0; key < count; key += kStep) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = vectors * part / parts, length = vectors * (part + 1) / parts - first;
      kAdd[length - 1](rows, s.weights + key, values + key * width + 2 * first * kLanes, width, Min(kStep, count - key),
                       s.sums + first * kLanes);
    }
  }
}

// Turns a row's scores into weights relative to the running maximum, and rescales what was summed before.
void SoftmaxRow(const float* bias, int64_t count, float factor, int64_t width, int64_t row, const Scratch& s) {
  float* scores = s.scores + row * kKeyBlock;
  float* sums = s.sums + row * width;
  const int64_t padded = RoundUp(count, kLanes);
  if (bias != nullptr) {
    for (int64_t key = 0; key < count; ++key) scores[key] = scores[key] * factor + bias[key] * kLog2E;
    factor = 1;
  }
  for (int64_t key = count; key < padded; ++key) scores[key] = factor < 0 ? __builtin_inff() : -__builtin_inff();
  Floats top = Broadcast(s.largest[row]);
  for (int64_t key = 0; key < padded; key += kLanes) top = Max(Load(scores + key) * factor, top);
  const float next = Largest(top);
  if (next != s.largest[row]) {
    const float correction = Exp2(Broadcast(s.largest[row] - next))[0];
    s.totals[row] *= correction;
    for (int64_t c = 0; c < width; c += kLanes) Store(sums + c, Load(sums + c) * correction);
    s.largest[row] = next;
  }
  Floats sum = {};
  for (int64_t key = 0; key < padded; key += kLanes) {
    const Floats weight = Exp2(Load(scores + key) * factor - next);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(s.weights + row * kKeyBlock + key),
                        (__m256i)_mm512_cvtneps_pbh((__m512)weight));
    sum += weight;
  }
  s.totals[row] += Sum(sum);
}

// Rows [block, block + rows) of the queries, and nothing summed yet.
void BeginRows(const AttentionHead& head, int64_t block, int64_t rows, const Packed& packed, const Scratch& s) {
  const int64_t d = head.head_dim;
  for (int64_t row = 0; row < kRowBlock; ++row) {
    const uint16_t* q = static_cast<const uint16_t*>(head.q) + (block + Min(row, rows - 1)) * head.q_stride;
    uint16_t* to = s.queries + row * packed.depth;
    __builtin_memcpy(to, q, 2 * d);
    if (packed.depth > d) to[d] = 0;
    s.largest[row] = kLowest;
    s.totals[row] = 0;
    for (int64_t c = 0; c < packed.width; ++c) s.sums[row * packed.width + c] = 0;
  }
  // Rows beyond the last take part in the second product, and are not written.
  for (int64_t row = rows; row < kRowBlock; ++row) {
    __builtin_memset(s.weights + row * kKeyBlock, 0, 2 * kKeyBlock);
  }
}

void EndRows(const AttentionHead& head, int64_t block, int64_t rows, const Packed& packed, const Scratch& s) {
  const int64_t d = head.head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    Bf16* out = static_cast<Bf16*>(head.out) + (block + row) * head.out_stride;
    const float reciprocal = 1.0f / s.totals[row];
    for (int64_t c = 0; c < d; c += kLanes) {
      const Floats y = Load(s.sums + row * packed.width + c) * reciprocal;
      if (c + kLanes <= d) {
        Store(out + c, y);
      } else {
        StoreSome(out + c, y, d - c);
      }
    }
    if (head.lse != nullptr) {
      constexpr float kLn2 = 0.6931471806f;
      head.lse[(block + row) * head.lse_stride] = (s.largest[row] + __builtin_log2f(s.totals[row])) * kLn2;
    }
  }
}

void Attend(Element, const AttentionHead& head, int64_t first_row, int64_t last_row, const void* buffer,
            void* scratch) {
  const Packed packed = Layout(head, const_cast<void*>(buffer));
  const Scratch s = Carve(packed, scratch);
  for (int64_t block = first_row; block < last_row; block += kRowBlock) {
    const int64_t rows = Min(kRowBlock, last_row - block);
    for (int64_t row = block + rows; row < Min(block + rows + kRowBlock, last_row); ++row) {
      Prefetch(static_cast<const uint16_t*>(head.q) + row * head.q_stride, head.head_dim);
    }
    BeginRows(head, block, rows, packed, s);
    for (int64_t key = 0; key < head.key_count; key += kKeyBlock) {
      const int64_t count = Min(kKeyBlock, head.key_count - key);
      for (int64_t panel = 0; panel < count; panel += kPanel) {
        for (int64_t row = 0; row < rows; row += kScoreRows) {
          ScorePanel(s.queries + row * packed.depth, packed.keys + (key + panel) * packed.depth, packed.depth,
                     s.scores + row * kKeyBlock + panel);
        }
      }
      for (int64_t row = 0; row < rows; ++row) {
        SoftmaxRow(head.bias == nullptr ? nullptr : head.bias + key, count, head.scale * kLog2E, packed.width, row, s);
      }
      AddBlockValues(rows, s, packed.values + key * packed.width, packed.width, count);
    }
    EndRows(head, block, rows, packed, s);
  }
}

}  // namespace

const AttentionKernels kAttentionAvx512Bf16 = {
    .packed_bytes = PackedBytes,
    .scratch_bytes = ScratchBytes,
    .pack = Pack,
    .attend = Attend,
};

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never names pairs of bf16 here.
const AttentionKernels kAttentionAvx512Bf16 = {};

}  // namespace tessera::kernels::cpu

#endif
