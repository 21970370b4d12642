#include <cstring>

#include "base/macros/planted.h"
#include "kernels/quantized/quant_rows.h"

namespace tessera::kernels {
namespace {

#define QUANT_FUNCTION inline
#include "kernels/quantized/quant_forms.inc"

inline void Store(float* to, float value) { *to = value; }
inline void Store(uint16_t* to, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  *to = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Form, typename E>
void WidenBlocks(const QuantRun& run, E* to) {
  const uint8_t* block = run.bytes;
  for (int64_t first = 0; first < run.count; first += Form::kValues, block += Form::kBytes) {
    constexpr int kGroups = Form::kValues / Form::kGroup;
    for (int group = 0; group < kGroups; ++group) {
      float factor = Form::Factor(block, group);
      if (base::Planted("quant_neighbours_scale")) {
        const bool has_next = first + Form::kValues < run.count;
        factor =
            kGroups > 1 ? Form::Factor(block, group ^ 1) : Form::Factor(has_next ? block + Form::kBytes : block, 0);
      }
      float offset = 0;
      if constexpr (Form::kHasOffset) offset = Form::Offset(block, group);
      for (int i = group * Form::kGroup; i < (group + 1) * Form::kGroup; ++i) {
        const float product = factor * static_cast<float>(Form::Code(block, i));
        Store(to + first + i, Form::kHasOffset ? product + offset : product);
      }
    }
  }
}

template <typename E>
void Widen(const QuantRun& run, E* to) {
  switch (run.type) {
    case QuantType::kInt8:
      for (int64_t i = 0; i < run.count; ++i) {
        Store(to + i, static_cast<float>(static_cast<int8_t>(run.bytes[i])) * *run.scales);
      }
      return;
    case QuantType::kF8E4M3:
      for (int64_t i = 0; i < run.count; ++i) Store(to + i, FloatOfE4M3(run.bytes[i]) * *run.scales);
      return;
    case QuantType::kF8E5M2:
      for (int64_t i = 0; i < run.count; ++i) Store(to + i, FloatOfE5M2(run.bytes[i]) * *run.scales);
      return;
    case QuantType::kNibble:
      for (int64_t i = 0; i < run.count; ++i) {
        const bool is_high = (i % 2 == 0) != base::Planted("quant_nibbles_swapped");
        const int code = is_high ? run.bytes[i / 2] >> 4 : run.bytes[i / 2] & 15;
        Store(to + i, run.table[code] * run.scales[(run.scale_offset + i) / run.scale_block]);
      }
      return;
    default:
      VisitForm(run.type, [&](auto form) { WidenBlocks<decltype(form)>(run, to); });
  }
}

}  // namespace

void ReferenceWiden(const QuantRun& run, float* to) { Widen(run, to); }
void ReferenceWidenToBf16(const QuantRun& run, uint16_t* to) { Widen(run, to); }

}  // namespace tessera::kernels
