// CPU versions of attention: softmax over key blocks with running maxima, so the scores never exist as a whole.
// "One head" is one head of one batch entry. Rows are query tokens.
#pragma once

#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {

// Pointers are to the head's first element of its first token, strides between tokens in elements.
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
  const float* bias = nullptr;    // per key of `keys`, or null
  int64_t key_count = 0;          // of `keys`, at least 1
  float* lse = nullptr;           // of the first row; null where it is not wanted, as kAttentionAmx takes it to be
  int64_t lse_stride = 0;         // between rows
};

// A version of attention. The caller packs a head's keys and values into `packed` once, then attends any row ranges.
struct AttentionKernels {
  // Bytes of the two buffers; both are 64-byte aligned and belong to the calling thread.
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
