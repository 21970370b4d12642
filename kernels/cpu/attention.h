// CPU versions of attention: softmax over blocks of keys with running maxima, so that the matrix of scores is never
// stored as a whole. "One head" is one head of one batch entry. Rows are query tokens.
#pragma once

#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {

// Pointers refer to the head's first element of the first token. Strides are between tokens, in elements.
struct AttentionHead {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t out_stride;
  int64_t head_dim;
  float scale;
  const int32_t* keys = nullptr;  // indices of the keys that take part
  const float* bias = nullptr;    // one per entry of `keys`, or null
  int64_t key_count = 0;          // number of `keys`, at least 1
  float* lse = nullptr;           // that of the first row, or null if not wanted; kAttentionAmx requires null
  int64_t lse_stride = 0;         // between rows
};

// One version of attention. The caller packs a head's keys and values into `packed` once, then calls `attend` for any
// ranges of rows.
struct AttentionKernels {
  // Sizes in bytes of the two buffers. Both are 64-byte aligned and belong to the calling thread.
  int64_t (*packed_bytes)(int64_t key_count, int64_t head_dim);
  int64_t (*scratch_bytes)(int64_t key_count, int64_t head_dim);
  void (*pack)(Element, const AttentionHead&, void* packed);
  void (*attend)(Element, const AttentionHead&, int64_t first_row, int64_t last_row, const void* packed, void* scratch);
};

extern const AttentionKernels kAttentionBaseline;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAvx512Bf16;  // bf16 only
extern const AttentionKernels kAttentionAmx;         // bf16 only, scale > 0

}  // namespace tessera::kernels::cpu
