#include "client/cli/models/model_files.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPartBytes = size_t{4} << 20;
constexpr char kIndex[] = "model_index.json";

bool IsHidden(const fs::path& path) { return absl::StartsWith(path.filename().string(), "."); }

// Paths relative to the folder.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::vector<std::string> files = {kIndex};
  std::error_code error;
  for (fs::directory_iterator component(folder, error), end; !error && component != end; component.increment(error)) {
    if (IsHidden(component->path()) || !component->is_directory(error)) continue;
    for (fs::directory_iterator file(component->path(), error); !error && file != end; file.increment(error)) {
      if (IsHidden(file->path()) || !file->is_regular_file(error)) continue;
      files.push_back(fs::path(component->path().filename() / file->path().filename()).string());
    }
  }
  if (error) return absl::UnavailableError(absl::StrCat("the model's folder cannot be read: ", error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<std::string> DigestOfModelFiles(const std::string& folder,
                                               const std::function<absl::Status()>& proceed) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(folder));
  base::Sha256 digest;
  std::vector<std::byte> part;
  for (const std::string& name : files) {
    ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(absl::StrCat(folder, "/", name), name));
    digest.UpdatePart(name);
    digest.UpdatePart(absl::StrCat(file.size()));
    for (uint64_t at = 0; at < file.size(); at += part.size()) {
      RETURN_IF_ERROR(proceed());
      part.resize(std::min<uint64_t>(kPartBytes, file.size() - at));
      RETURN_IF_ERROR(file.Read(at, part));
      digest.Update({reinterpret_cast<const char*>(part.data()), part.size()});
    }
  }
  return digest.Finish();
}

}  // namespace tessera::client
