#include "base/machine/proc_text.h"

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files/file.h"
#include "base/text/string_views.h"

namespace tessera::base {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;

}  // namespace

std::string ReadProcText(const std::string& path) { return ReadSmallFile(path, kMaxFileBytes).value_or(""); }

std::vector<std::string> WordsAfter(const std::string& text, std::string_view label) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, AbslView(label)) && (line.empty() || line[0] == ' ' || line[0] == '\t')) {
      return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    }
  }
  return {};
}

}  // namespace tessera::base
