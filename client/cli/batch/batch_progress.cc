#include "client/cli/batch/batch_progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::client {

std::string BatchProgress::Text(absl::Duration elapsed) const {
  const double seconds = std::max(1e-3, absl::ToDoubleSeconds(elapsed));
  std::string text = absl::StrCat(skipped + ended, total > 0 ? absl::StrCat("/", total) : "", " items");
  if (ended > 0) absl::StrAppend(&text, absl::StrFormat(", %.2f images/s", static_cast<double>(images) / seconds));
  const int64_t left = total - skipped - ended;
  if (left > 0 && ended > 0) {
    const absl::Duration wait = absl::Seconds(static_cast<double>(left) * seconds / static_cast<double>(ended));
    absl::StrAppend(&text, ", ", absl::FormatDuration(absl::Trunc(wait, absl::Seconds(1))), " left");
  }
  if (failed > 0) absl::StrAppend(&text, ", ", failed, " failed");
  return text;
}

}  // namespace tessera::client
