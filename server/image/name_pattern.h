// Expands patterns such as "{prompt}-{seed}.png" to names of output files. Deterministic: uses no clock and no random
// numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::server {

inline constexpr char kDefaultNamePattern[] = "{prompt}-{seed}.png";

struct NameValues {
  int64_t index = 0;
  uint64_t seed = 0;
  std::string prompt;
  int width = 0;
  int height = 0;
  std::string model;
  int steps = 0;
};

// Replaces {index} {seed} {prompt} {width} {height} {model} {steps}; prompt and model as slugs. "{{" and "}}" stand for
// braces; everything else, folders included, is literal. INVALID_ARGUMENT for an unknown field (the message lists the
// valid ones), a lone brace, and a result that cannot be a file name.
[[nodiscard]] absl::StatusOr<std::string> ExpandPattern(std::string_view pattern, const NameValues& values);

// Returns lower-case letters and digits of any script with single "-" between them: at most 60 bytes, cut between
// characters, and never empty ("image" if nothing is left). Accepts any bytes.
[[nodiscard]] std::string Slug(std::string_view text);

// Returns `path`, or if it exists, the first free name of "name-2.png", "name-3.png", … . Another process may take the
// name before it is used: write with overwrite = false, and call again on ALREADY_EXISTS.
[[nodiscard]] std::string NextFreeName(const std::string& path);

}  // namespace tessera::server
