#include "models/tokenizers/tokenizer_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"

namespace tessera::models {
namespace {

constexpr size_t kMaxFileBytes = 64 << 20;

}  // namespace

TokenizerFolder::TokenizerFolder(const std::string& path) : path_(path) {
  std::filesystem::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();
  component_ = folder.filename().string();
}

absl::StatusOr<std::string> TokenizerFolder::Read(const std::string& file) const {
  return base::ReadWholeFile(absl::StrCat(path_, "/", file), absl::StrCat(component_, "/", file), kMaxFileBytes);
}

absl::StatusOr<std::optional<std::string>> TokenizerFolder::ReadIfThere(const std::string& file) const {
  absl::StatusOr<std::string> bytes = Read(file);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (!bytes.ok()) return bytes.status();
  return *std::move(bytes);
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace tessera::models
