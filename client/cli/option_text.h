// Parses numbers and sizes as typed. The validator checks ranges; a number that does not fit its type becomes the
// nearest one that does, so that the validator can refuse it with the field's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {
struct ImageRequest;
}

namespace tessera::client {

absl::StatusOr<int64_t> ParseInteger(absl::string_view field, const std::string& text);
inline constexpr char kAnySeed[] = "-1";  // as other programs write it
// Returns no value for kAnySeed.
absl::StatusOr<std::optional<uint64_t>> ParseSeed(const std::string& text);
absl::StatusOr<std::vector<int64_t>> ParseIntegers(absl::string_view field, const std::string& text);  // "7,8,9"
absl::StatusOr<double> ParseNumber(absl::string_view field, const std::string& text);  // also nan and inf

struct TypedSize {
  int64_t width = 0;
  int64_t height = 0;
};

// Parses "768x512", or "512" for a square.
absl::StatusOr<TypedSize> ParseSize(absl::string_view field, const std::string& text);

// Returns a request for an image of this size; an empty text means the model's default size.
absl::StatusOr<server::ImageRequest> SizedRequest(const std::string& size);

}  // namespace tessera::client
