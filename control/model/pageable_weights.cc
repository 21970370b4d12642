#include "control/model/pageable_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/byte_text.h"

namespace tessera::control {

MemoryFit WithPageable(MemoryFit fit, const PageableWeights& weights) {
  if (weights.bytes_per_second <= 0 || fit.transfer_bytes == 0) return fit;
  const auto copied = static_cast<double>(fit.transfer_bytes);
  const double pageable = std::min(copied, static_cast<double>(weights.bytes));
  fit.transfer_seconds = fit.transfer_seconds * (copied - pageable) / copied + pageable / weights.bytes_per_second;
  return fit;
}

std::string PageableText(const MemoryFit& fit, const PageableWeights& weights) {
  std::string text =
      absl::StrCat(base::ByteText(static_cast<uint64_t>(weights.bytes)), " of the ",
                   base::ByteText(static_cast<uint64_t>(weights.waiting_bytes)),
                   " in which weights wait are pageable, because the system refuses to pin more; copies are slower");
  const MemoryFit slower = WithPageable(fit, weights);
  if (slower.transfer_seconds > 0) absl::StrAppendFormat(&text, ", and a step takes %.3g s", slower.step_seconds());
  return text;
}

}  // namespace tessera::control
