// Formats numbers of bytes for people, and reads those that people write.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::base {

std::string ByteText(uint64_t bytes);  // "24.0 KiB", "1.5 MiB", "23.80 GiB"
std::string GibText(double bytes);     // "23.8 GiB"

// Reads a decimal number and a unit, such as "12GiB", "7.5 GiB" or "800MB": KiB, MiB and GiB are powers of 1024, KB, MB
// and GB of 1000, in upper or lower case. At most 2^60 bytes. INVALID_ARGUMENT for any other text.
absl::StatusOr<uint64_t> ParseByteText(absl::string_view text);

// Returns the error of ParseByteText for the value of this field, or one that says that it is less than `least`.
absl::Status CheckByteText(absl::string_view field, absl::string_view text, uint64_t least);

}  // namespace tessera::base
