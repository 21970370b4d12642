#include "base/machine/numa_nodes.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/text/string_views.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxListBytes = 64 << 10;  // for a list of every second processor of the largest possible number
constexpr int32_t kMostProcessors = 1 << 16;
constexpr int32_t kMostNodes = 1 << 10;

std::optional<int32_t> ParseBelow(absl::string_view text, int32_t bound) {
  int32_t number = 0;
  // SimpleAtoi accepts signs and spaces.
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) return std::nullopt;
  if (!absl::SimpleAtoi(text, &number) || number >= bound) return std::nullopt;
  return number;
}

std::optional<int32_t> ReadNumber(const std::string& path, int32_t bound) {
  const std::string text = ReadSmallFile(path, kMaxListBytes).value_or("");
  return ParseBelow(absl::StripAsciiWhitespace(text), bound);
}

}  // namespace

std::optional<std::vector<int32_t>> ParseProcessorList(std::string_view text) {
  std::vector<int32_t> processors;
  const absl::string_view list = absl::StripAsciiWhitespace(AbslView(text));
  if (list.empty()) return processors;
  for (const absl::string_view range : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
    const std::optional<int32_t> first = ParseBelow(ends.front(), kMostProcessors);
    const std::optional<int32_t> last = ParseBelow(ends.back(), kMostProcessors);
    if (!first || !last || *last < *first) return std::nullopt;
    if (!processors.empty() && *first <= processors.back()) return std::nullopt;
    for (int32_t processor = *first; processor <= *last; ++processor) processors.push_back(processor);
  }
  return processors;
}

std::string ProcessorListText(const std::vector<int32_t>& processors) {
  std::string text;
  for (size_t i = 0; i < processors.size();) {
    size_t end = i + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", processors[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", processors[end - 1]);
    i = end;
  }
  return text;
}

std::vector<NumaNode> ReadNumaNodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (fs::directory_iterator entry(root + "/sys/devices/system/node", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!absl::StartsWith(name, "node")) continue;
    const std::optional<int32_t> number = ParseBelow(absl::string_view(name).substr(4), kMostNodes);
    const std::optional<std::string> list = ReadSmallFile(entry->path() / "cpulist", kMaxListBytes);
    if (!number || !list) continue;
    std::optional<std::vector<int32_t>> processors = ParseProcessorList(*list);
    if (!processors) continue;
    NumaNode node{.number = *number, .processors = *std::move(processors)};
    if (!node.processors.empty()) {
      node.socket = ReadNumber(
          absl::StrCat(root, "/sys/devices/system/cpu/cpu", node.processors.front(), "/topology/physical_package_id"),
          kMostProcessors);
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  return nodes;
}

}  // namespace tessera::base
