// Names of output files from a pattern such as "{prompt}-{seed}.png". Deterministic: no clock, no random part.
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
// braces; all else, folders included, is taken literally. kInvalidArgument for an unknown field (the message lists the
// valid ones), a lone brace, and a result that cannot be the name of a file.
[[nodiscard]] absl::StatusOr<std::string> ExpandPattern(std::string_view pattern, const NameValues& values);

// Lower-case letters and digits of any script with single "-" between them: never empty ("image" where nothing is
// left), at most 60 bytes, cut between characters. Any bytes are accepted.
[[nodiscard]] std::string Slug(std::string_view text);

// `path`, or where something exists there the first free of "name-2.png", "name-3.png", … . Another process may take
// the name before it is used: write with overwrite = false and ask again on kAlreadyExists.
[[nodiscard]] std::string NextFreeName(const std::string& path);

}  // namespace tessera::server
