#include "base/text/byte_text.h"

#include "absl/strings/str_format.h"

namespace tessera::base {

std::string ByteText(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return absl::StrFormat("%.2f GiB", bytes / double(uint64_t{1} << 30));
  if (bytes >= uint64_t{1} << 20) return absl::StrFormat("%.1f MiB", bytes / double(1 << 20));
  return absl::StrFormat("%.1f KiB", bytes / 1024.0);
}

std::string GibText(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

}  // namespace tessera::base
