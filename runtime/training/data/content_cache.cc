#include "runtime/training/data/content_cache.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/sha256.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "tessera cache 1\n";
constexpr size_t kMaxEntryBytes = size_t{4} << 30;
constexpr size_t kKeyDigits = 64;

bool IsKey(const std::string& key) { return key.size() == kKeyDigits && base::IsPlainFileName(key); }

// Returns the header before the bytes: the format, and the digest of key and bytes, so that a renamed entry is invalid.
std::string HeaderOf(const std::string& key, std::string_view bytes) {
  base::Sha256 digest;
  digest.UpdatePart(key);
  digest.UpdatePart(bytes);
  return absl::StrCat(std::string(kMagic), digest.Finish(), "\n");
}

}  // namespace

std::string ContentKey(const std::vector<std::string>& parts) {
  base::Sha256 digest;
  for (const std::string& part : parts) digest.UpdatePart(part);
  return digest.Finish();
}

absl::StatusOr<ContentCache> ContentCache::Open(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": the folder cannot be made: ", error.message()));
  }
  return ContentCache(folder);
}

// Entries are in 256 folders, so that none has too many files to list.
std::string ContentCache::PathOf(const std::string& key) const {
  return (fs::path(folder_) / key.substr(0, 2) / key).string();
}

bool ContentCache::Has(const std::string& key) const {
  std::error_code ignored;
  return IsKey(key) && fs::is_regular_file(PathOf(key), ignored);
}

std::optional<std::string> ContentCache::Find(const std::string& key) const {
  if (!IsKey(key)) return std::nullopt;
  const std::string path = PathOf(key);
  absl::StatusOr<std::string> file = base::ReadWholeFile(path, path, kMaxEntryBytes);
  const size_t header = kMagic.size() + kKeyDigits + 1;
  if (!file.ok() || file->size() < header) return std::nullopt;
  std::string bytes = file->substr(header);
  if (std::string_view(*file).substr(0, header) != HeaderOf(key, bytes)) return std::nullopt;
  return bytes;
}

absl::Status ContentCache::Keep(const std::string& key, std::string_view bytes) const {
  if (!IsKey(key)) {
    return absl::InvalidArgumentError("the key of a cache entry is not one that ContentKey made");
  }
  const std::string path = PathOf(key);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(path, ": the folder cannot be made: ", error.message()));
  return base::WriteFileAtomically(path,
                                   absl::StrCat(HeaderOf(key, bytes), absl::string_view(bytes.data(), bytes.size())));
}

}  // namespace tessera::runtime
