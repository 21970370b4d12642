#include "server/config/header_lines.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxHeaderFileBytes = 64 << 10;

// The characters of RFC 9110, section 5.6.2.
bool IsHeaderName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("!#$%&'*+-.^_`|~", absl::string_view(&c, 1));
  });
}

bool IsHeaderValue(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

absl::StatusOr<std::string> HeaderLine(absl::string_view name, absl::string_view value) {
  if (!IsHeaderName(name)) {
    return absl::InvalidArgumentError(
        "a header has no valid name; valid are lines such as \"Authorization: Bearer …\"");
  }
  for (const char* own :
       {"content-type", "content-length", "content-encoding", "transfer-encoding", "host", "expect"}) {
    if (absl::EqualsIgnoreCase(name, own)) {
      return absl::InvalidArgumentError(absl::StrCat("the header ", name, " belongs to the message and cannot be set"));
    }
  }
  if (!IsHeaderValue(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header ", name, " has no valid value; valid are visible ASCII characters and spaces"));
  }
  return absl::StrCat(name, ": ", value);
}

absl::StatusOr<std::vector<std::string>> ParseHeaderLines(absl::string_view text) {
  std::vector<std::string> headers;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    ASSIGN_OR_RETURN(headers.emplace_back(), HeaderLine(parts.first, absl::StripAsciiWhitespace(parts.second)));
  }
  return headers;
}

absl::StatusOr<std::vector<std::string>> ReadHeaderLines(const std::string& path, absl::string_view name) {
  const std::optional<std::string> text = base::ReadSmallFile(path, kMaxHeaderFileBytes);
  if (!text.has_value()) return absl::NotFoundError(absl::StrCat(name, " cannot be read"));
  if (text->size() > kMaxHeaderFileBytes) return absl::InvalidArgumentError(absl::StrCat(name, " is too large"));
  absl::StatusOr<std::vector<std::string>> headers = ParseHeaderLines(*text);
  if (headers.ok()) return headers;
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", headers.status().message()));
}

}  // namespace tessera::server
