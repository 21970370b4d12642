// SHA-256 and random tokens.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// 32 bytes.
std::string Sha256(absl::string_view bytes);

// 128 random bits from the system, as 32 digits of lower-case hex.
absl::StatusOr<std::string> RandomToken();

// Lower-case hex.
std::string HexText(absl::string_view bytes);

}  // namespace tessera
