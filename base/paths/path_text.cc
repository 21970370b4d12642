#include "base/paths/path_text.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json/json.h"

namespace tessera::base {

std::string QuotePath(std::string_view path) { return Quote(path, std::string::npos); }

std::string ShellWord(std::string_view path) {
  const auto is_plain = [](unsigned char c) {
    return absl::ascii_isalnum(c) || (c != '\0' && std::strchr("_./+:=@%,-", c) != nullptr);
  };
  const std::string text(path);
  if (std::ranges::any_of(text, [](unsigned char c) { return absl::ascii_iscntrl(c); })) return "FILE";
  if (!text.empty() && text[0] != '-' && std::ranges::all_of(text, is_plain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace tessera::base
