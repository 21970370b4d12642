#include "server/adapters/adapter_file.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/adapters/plan/adapter_files.h"

namespace tessera::server {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr char kMetadata[] = "__metadata__";
// PEFT's files, of which a copied folder consists.
constexpr const char* kTensorsFile = kContentParts[0];
constexpr const char* kConfigFile = kContentParts[1];
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

absl::StatusOr<models::AdapterFiles> FilesOf(const std::string& path, const std::string& name) {
  absl::StatusOr<models::AdapterFiles> files = models::FilesOf(path);
  if (files.ok()) return files;
  return absl::Status(files.status().code(), absl::StrCat(name, ": ", std::string(files.status().message())));
}

absl::StatusOr<std::string> ReadConfig(const models::AdapterFiles& paths, const std::string& name) {
  if (paths.config.empty()) return "";
  return base::ReadWholeFile(paths.config, absl::StrCat(name, ": ", kConfigFile), kMaxConfigBytes);
}

absl::Status Wrong(const std::string& name, const auto&... what) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is not an adapter file: ", what...));
}

using Range = std::pair<uint64_t, uint64_t>;

// Returns the offsets of a tensor's bytes after the header; nullopt if the entry has none.
std::optional<Range> RangeOf(const base::Json& tensor) {
  const base::Json* offsets = tensor.Find("data_offsets");
  if (offsets == nullptr || offsets->items().size() != 2) return std::nullopt;
  const int64_t begin = offsets->items()[0].AsInt().value_or(-1), end = offsets->items()[1].AsInt().value_or(-1);
  if (begin < 0 || end < begin) return std::nullopt;
  return Range(begin, end);
}

absl::Status CheckHeader(const std::string& text, uint64_t data_bytes, const std::string& name) {
  ASSIGN_OR_RETURN(const base::Json header, base::ParseJson(text, absl::StrCat(name, ": its header")));
  if (!header.is_object()) return Wrong(name, "its header is not a JSON object");
  std::vector<Range> ranges;
  for (const base::JsonMember& member : header.members()) {
    if (member.key == kMetadata) continue;
    const std::optional<Range> range = RangeOf(member.value);
    if (!range.has_value()) return Wrong(name, "tensor ", base::Quote(member.key), " has no valid data_offsets");
    ranges.push_back(*range);
  }
  if (ranges.empty()) return Wrong(name, "it holds no tensors");
  std::ranges::sort(ranges);
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) return Wrong(name, "its tensors have a gap or overlap at byte ", std::min(begin, at));
    at = end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return Wrong(name, "its header describes ", at, " bytes of tensors and the file has ", data_bytes,
               at > data_bytes ? "; it may have been cut short" : "");
}

absl::Status CheckFile(const base::ReadOnlyFile& file) {
  const std::string& name = file.name();
  if (file.size() > kMaxAdapterBytes) {
    return Wrong(name, "it has ", file.size(), " bytes; at most ", kMaxAdapterBytes, " are valid");
  }
  unsigned char prefix[kLengthBytes] = {};
  if (file.size() <= kLengthBytes) return Wrong(name, "it has only ", file.size(), " bytes");
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(prefix))));
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | prefix[i];
  const uint64_t most = std::min(kMaxAdapterHeaderBytes, file.size() - kLengthBytes);
  if (length > most) return Wrong(name, "it declares a header of ", length, " bytes; at most ", most, " are valid");
  std::string header(length, '\0');
  RETURN_IF_ERROR(file.Read(kLengthBytes, std::as_writable_bytes(std::span(header))));
  return CheckHeader(header, file.size() - kLengthBytes - length, name);
}

// Reads the file in blocks and passes each to `take`.
absl::Status ReadBlocks(const base::ReadOnlyFile& file, const std::function<absl::Status(std::string_view)>& take) {
  std::string block;
  for (uint64_t at = 0; at < file.size(); at += block.size()) {
    block.resize(std::min<uint64_t>(kBlockBytes, file.size() - at));
    RETURN_IF_ERROR(file.Read(at, std::as_writable_bytes(std::span(block))));
    RETURN_IF_ERROR(take(block));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsAdapterFolder(const std::string& path) { return !models::TensorsInFolder(path).empty(); }

absl::StatusOr<AdapterFile> CheckAdapterFile(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const models::AdapterFiles paths, FilesOf(path, name));
  ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(paths.tensors, name));
  RETURN_IF_ERROR(CheckFile(file));
  ASSIGN_OR_RETURN(const std::string config, ReadConfig(paths, name));
  base::Sha256 digest;
  RETURN_IF_ERROR(ReadBlocks(file, [&](std::string_view block) { return digest.Update(block), absl::OkStatus(); }));
  digest.Update(config);
  return AdapterFile{.digest = digest.Finish(), .bytes = file.size() + config.size()};
}

absl::Status CopyAdapterFile(const std::string& path, const std::string& name, ContentWriter& copy) {
  ASSIGN_OR_RETURN(const models::AdapterFiles paths, FilesOf(path, name));
  ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(paths.tensors, name));
  RETURN_IF_ERROR(CheckFile(file));
  ASSIGN_OR_RETURN(const std::string config, ReadConfig(paths, name));
  std::string tensors = copy.path();
  if (!paths.config.empty()) {
    RETURN_IF_ERROR(copy.BeginPart(kTensorsFile));
    absl::StrAppend(&tensors, "/", kTensorsFile);
  }
  RETURN_IF_ERROR(ReadBlocks(file, [&copy](std::string_view block) { return copy.Append(block); }));
  // The file may have changed since its header was read.
  ASSIGN_OR_RETURN(const base::ReadOnlyFile written, base::ReadOnlyFile::Open(tensors, name));
  RETURN_IF_ERROR(CheckFile(written));
  if (paths.config.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(copy.BeginPart(kConfigFile));
  return copy.Append(config);
}

}  // namespace tessera::server
