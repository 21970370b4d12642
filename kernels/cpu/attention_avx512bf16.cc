// Attention for bf16 in pairs: both products multiply pairs of bf16 and sum in fp32; softmax is in fp32.
//
// Keys are packed into panels of kPanel keys, [panel][head_dim / 2][kPanel][2]; values into pairs of rows of whole
// vectors, [key / 2][padded head_dim][2]. Odd dimensions are padded with zeros. A block of kRowBlock queries is
// processed with kKeyBlock keys at a time; both products keep a rectangle of sums in registers, and a panel's scores
// are turned into weights as soon as they are computed. A weight is relative to its row's reference, an integer power
// of two near the largest score so far. The weights are summed in fp32 and then rounded to bf16 for the second product.

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
constexpr int kKeyBlock = 4 * kPanel;
constexpr int kRowBlock = 40;  // a multiple of every row count below
constexpr int kScoreRows = 8;  // rows × kPanelVectors sums: 24 of 32 registers
constexpr int kMaxValueVectors = 5;
constexpr float kLog2E = 1.442695041f;
constexpr float kLowest = -1e30f;   // below every real score; finite, so that differences are never NaN
constexpr float kMostExponent = 8;  // of a weight

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
  float* sums;        // [kRowBlock][width]
  float* totals;      // [kRowBlock][kLanes]
  float* references;  // [kRowBlock]
  float* bias;        // [kPanel]
  uint16_t* weights;  // [kRowBlock][kKeyBlock]
  uint16_t* queries;  // [kRowBlock][depth]
};

inline Scratch Carve(const Packed& packed, void* scratch) {
  Scratch s;
  s.sums = static_cast<float*>(scratch);
  s.totals = s.sums + kRowBlock * packed.width;
  s.bias = s.totals + kRowBlock * kLanes;
  s.weights = reinterpret_cast<uint16_t*>(s.bias + kPanel);
  s.references = reinterpret_cast<float*>(s.weights + kRowBlock * kKeyBlock);
  s.queries = reinterpret_cast<uint16_t*>(s.references + kRowBlock);
  return s;
}

int64_t ScratchBytes(int64_t, int64_t head_dim) {
  return kRowBlock * (4 * RoundUp(head_dim, kLanes) + 4 * kLanes + 4 + 2 * kKeyBlock + 2 * RoundUp(head_dim, 2)) +
         4 * kPanel;
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

// 2^x for x <= 127 with a relative error of 1/380,000, from the best polynomial of its degree for the fraction. Returns
// 0 for -∞ and NaN for NaN. It has three instructions fewer than Exp2, which is exact to fp32, and makes attention 2 %
// faster.
inline __m512 PowerOfTwo(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(1.353416792e-02f), fraction, _mm512_set1_ps(5.201146061e-02f));
  y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(2.414427569e-01f));
  y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(6.930038345e-01f));
  y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(1.000002593e+00f));
  return _mm512_scalef_ps(y, x);  // scales by the integer below x
}

// Raises a row's reference to the integer above `score`, and rescales the earlier sums and the weights of this block's
// first `count` keys by the corresponding power of two, which is exact.
void LiftReference(float score, int64_t width, int64_t row, int64_t count, const Scratch& s) {
  const float before = s.references[row];
  const __m512 reference = _mm512_roundscale_ps(_mm512_set1_ps(score), _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  s.references[row] = _mm512_cvtss_f32(reference);
  const __m512 change = _mm512_sub_ps(_mm512_set1_ps(before), reference);
  const auto scale = [&](float* x) { _mm512_storeu_ps(x, _mm512_scalef_ps(_mm512_loadu_ps(x), change)); };
  scale(s.totals + row * kLanes);
  for (int64_t c = 0; c < width; c += kLanes) scale(s.sums + row * width + c);
  for (int64_t key = 0; key < count; key += kLanes) {
    __m256i* weights = reinterpret_cast<__m256i*>(s.weights + row * kKeyBlock + key);
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(weights)), 16);
    _mm256_storeu_si256(weights, (__m256i)_mm512_cvtneps_pbh(_mm512_scalef_ps(_mm512_castsi512_ps(wide), change)));
  }
}

// Computes the weights of kScoreRows rows starting at `row` for the keys of one panel, which is at `key` of its block:
// 2^(queries · keys × factor + bias - reference). A row's reference is unchanged while no exponent exceeds
// kMostExponent. If kBiased, the bias is read from the scratch memory, in units of log 2.
template <bool kBiased>
inline void WeighPanel(const Packed& packed, const uint16_t* panel, float factor, int64_t row, int64_t key,
                       const Scratch& s) {
  const uint16_t* queries = s.queries + row * packed.depth;
  __m512 sum[kScoreRows][kPanelVectors];
  for (int i = 0; i < kScoreRows; ++i) {
    for (int part = 0; part < kPanelVectors; ++part) sum[i][part] = _mm512_setzero_ps();
  }
  for (int64_t c = 0; c < packed.depth; c += 2) {
    __m512bh keys[kPanelVectors];
    for (int part = 0; part < kPanelVectors; ++part) keys[part] = LoadPairs(panel + c * kPanel + 2 * part * kLanes);
    for (int i = 0; i < kScoreRows; ++i) {
      const __m512bh query = PairOf(queries + i * packed.depth + c);
      for (int part = 0; part < kPanelVectors; ++part) {
        sum[i][part] = _mm512_dpbf16_ps(sum[i][part], query, keys[part]);
      }
    }
  }
  const __m512 scale = _mm512_set1_ps(factor);
  for (int i = 0; i < kScoreRows; ++i, ++row) {
    __m512 exponent[kPanelVectors];
    const auto take_exponents = [&](float reference) {
      for (int part = 0; part < kPanelVectors; ++part) {
        if constexpr (kBiased) {
          const __m512 score = _mm512_fmadd_ps(sum[i][part], scale, _mm512_loadu_ps(s.bias + part * kLanes));
          exponent[part] = _mm512_sub_ps(score, _mm512_set1_ps(reference));
        } else {
          exponent[part] = _mm512_fmsub_ps(sum[i][part], scale, _mm512_set1_ps(reference));
        }
      }
      return _mm512_max_ps(_mm512_max_ps(exponent[0], exponent[1]), exponent[2]);
    };
    const __m512 top = take_exponents(s.references[row]);
    if (__builtin_expect(_mm512_cmp_ps_mask(top, _mm512_set1_ps(kMostExponent), _CMP_GT_OQ) != 0, 0)) {
      LiftReference(_mm512_reduce_max_ps(take_exponents(0)), packed.width, row, key, s);
      take_exponents(s.references[row]);
    }
    __m512 weight[kPanelVectors];
    for (int part = 0; part < kPanelVectors; ++part) weight[part] = PowerOfTwo(exponent[part]);
    float* totals = s.totals + row * kLanes;
    _mm512_storeu_ps(
        totals, _mm512_add_ps(_mm512_add_ps(_mm512_loadu_ps(totals), weight[0]), _mm512_add_ps(weight[1], weight[2])));
    uint16_t* to = s.weights + row * kKeyBlock + key;
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * kLanes), (__m256i)_mm512_cvtneps_pbh(weight[2]));
  }
}

// Computes the weights of a row block for the panel that begins with `key`, in the block that begins with `first_key`.
void WeighRows(const AttentionHead& head, int64_t rows, const Packed& packed, int64_t key, int64_t first_key,
               const Scratch& s) {
  const uint16_t* panel = packed.keys + key * packed.depth;
  const int64_t count = Min(kPanel, head.key_count - key);
  const float factor = head.scale * kLog2E;
  const bool biased = head.bias != nullptr || count < kPanel;
  for (int64_t i = 0; biased && i < kPanel; ++i) {
    s.bias[i] = i >= count ? -__builtin_inff() : head.bias == nullptr ? 0 : head.bias[key + i] * kLog2E;
  }
  for (int64_t row = 0; row < rows; row += kScoreRows) {
    (biased ? WeighPanel<true> : WeighPanel<false>)(packed, panel, factor, row, key - first_key, s);
  }
}

// sums[row][vectors] += weights[row] · values, for the rows of a block, ValueRows(kVectors) at a time, and `count`
// keys. If kHalf, only the lower half of the last vector is computed, at half the cost on processors that execute
// 512-bit instructions in halves.
template <int kVectors, bool kHalf>
void AddValues(int64_t rows, const uint16_t* weights, const uint16_t* values, int64_t width, int64_t count,
               float* sums) {
  constexpr int kRows = ValueRows(kVectors), kWhole = kHalf ? kVectors - 1 : kVectors;
  for (int64_t first = 0; first < rows; first += kRows, weights += kRows * kKeyBlock, sums += kRows * width) {
    __m512 sum[kRows][kVectors];
    __m256 half[kRows];
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kWhole; ++i) sum[row][i] = _mm512_loadu_ps(sums + row * width + i * kLanes);
      if (kHalf) half[row] = _mm256_loadu_ps(sums + row * width + kWhole * kLanes);
    }
    for (int64_t key = 0; key < count; key += 2) {
      const uint16_t* from = values + key * width;
      __m512bh value[kVectors];
      __m256bh half_value;
      for (int i = 0; i < kWhole; ++i) value[i] = LoadPairs(from + 2 * i * kLanes);
      if (kHalf) {
        half_value = (__m256bh)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2 * kWhole * kLanes));
      }
      for (int row = 0; row < kRows; ++row) {
        const __m512bh weight = PairOf(weights + row * kKeyBlock + key);
        for (int i = 0; i < kWhole; ++i) sum[row][i] = _mm512_dpbf16_ps(sum[row][i], weight, value[i]);
        if (kHalf) {
          const __m256bh half_weight = (__m256bh)_mm512_castsi512_si256((__m512i)weight);
          half[row] = _mm256_dpbf16_ps(half[row], half_weight, half_value);
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kWhole; ++i) _mm512_storeu_ps(sums + row * width + i * kLanes, sum[row][i]);
      if (kHalf) _mm256_storeu_ps(sums + row * width + kWhole * kLanes, half[row]);
    }
  }
}

// Computes the second product for a whole row block and a block of keys whose values fit into the first-level cache.
void AddBlockValues(int64_t head_dim, int64_t rows, const Scratch& s, const uint16_t* values, int64_t width,
                    int64_t count) {
  using Add = void (*)(int64_t, const uint16_t*, const uint16_t*, int64_t, int64_t, float*);
  constexpr Add kAdd[][2] = {{AddValues<1, false>, AddValues<1, true>},
                             {AddValues<2, false>, AddValues<2, true>},
                             {AddValues<3, false>, AddValues<3, true>},
                             {AddValues<4, false>, AddValues<4, true>},
                             {AddValues<5, false>, AddValues<5, true>}};
  const int64_t vectors = width / kLanes, parts = (vectors + kMaxValueVectors - 1) / kMaxValueVectors;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = vectors * part / parts, last = vectors * (part + 1) / parts;
    const bool half = last * kLanes - head_dim >= kLanes / 2;
    kAdd[last - first - 1][half](rows, s.weights, values + 2 * first * kLanes, width, count, s.sums + first * kLanes);
  }
}

// Copies rows [block, block + rows) of the queries and resets the sums.
void BeginRows(const AttentionHead& head, int64_t block, int64_t rows, const Packed& packed, const Scratch& s) {
  const int64_t d = head.head_dim;
  for (int64_t row = 0; row < kRowBlock; ++row) {
    const uint16_t* q = static_cast<const uint16_t*>(head.q) + (block + Min(row, rows - 1)) * head.q_stride;
    uint16_t* to = s.queries + row * packed.depth;
    __builtin_memcpy(to, q, 2 * d);
    if (packed.depth > d) to[d] = 0;
    s.references[row] = kLowest;
    for (int lane = 0; lane < kLanes; ++lane) s.totals[row * kLanes + lane] = 0;
    for (int64_t c = 0; c < packed.width; ++c) s.sums[row * packed.width + c] = 0;
  }
  // Rows after the last take part in the second product, but are not written.
  for (int64_t row = rows; row < kRowBlock; ++row) {
    __builtin_memset(s.weights + row * kKeyBlock, 0, 2 * kKeyBlock);
  }
}

void EndRows(const AttentionHead& head, int64_t block, int64_t rows, const Packed& packed, const Scratch& s) {
  const int64_t d = head.head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    Bf16* out = static_cast<Bf16*>(head.out) + (block + row) * head.out_stride;
    const float total = _mm512_reduce_add_ps(_mm512_loadu_ps(s.totals + row * kLanes));
    const float reciprocal = 1.0f / total;
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
      head.lse[(block + row) * head.lse_stride] = (s.references[row] + __builtin_log2f(total)) * kLn2;
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
      for (int64_t panel = key; panel < key + count; panel += kPanel) WeighRows(head, rows, packed, panel, key, s);
      AddBlockValues(head.head_dim, rows, s, packed.values + key * packed.width, packed.width, count);
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

// BestIsa() never returns an instruction set with bf16 pairs in this build.
const AttentionKernels kAttentionAvx512Bf16 = {};

}  // namespace tessera::kernels::cpu

#endif
