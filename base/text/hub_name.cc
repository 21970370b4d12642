#include "base/text/hub_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::base {
namespace {

constexpr size_t kMaxPartBytes = 96;

bool IsValidPart(std::string_view part) {
  const auto is_inside = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const auto is_edge = [](char c) { return c != '-' && c != '.'; };
  return !part.empty() && part.size() <= kMaxPartBytes && std::all_of(part.begin(), part.end(), is_inside) &&
         is_edge(part.front()) && is_edge(part.back()) && part.find("--") == part.npos && part.find("..") == part.npos;
}

}  // namespace

std::optional<std::string> ReadHubName(std::string_view text) {
  const bool is_folder = text.starts_with(kHubFolderPrefix);
  if (is_folder) text.remove_prefix(std::string_view(kHubFolderPrefix).size());
  const std::string_view separator = is_folder ? "--" : "/";
  const size_t at = text.find(separator);
  if (at == text.npos) return std::nullopt;
  const std::string_view organisation = text.substr(0, at), name = text.substr(at + separator.size());
  if (!IsValidPart(organisation) || !IsValidPart(name)) return std::nullopt;
  return absl::StrCat(std::string(organisation), "/", std::string(name));
}

std::optional<std::string> HubNameOfPath(std::string_view path) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(path), '/'))) {
    if (!part.starts_with(kHubFolderPrefix)) continue;
    if (std::optional<std::string> name = ReadHubName(part)) return name;
  }
  return std::nullopt;
}

std::string HubDownloadCommand(std::string_view path) {
  return absl::StrCat("tessera pull ", HubNameOfPath(path).value_or("ORG/NAME"));
}

}  // namespace tessera::base
