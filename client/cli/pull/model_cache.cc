#include "client/cli/pull/model_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/atomic_file.h"
#include "base/files/file_descriptor.h"
#include "base/files/hub_folders.h"
#include "base/macros/status_macros.h"
#include "base/text/hub_name.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr char kModelIndexFile[] = "model_index.json";
constexpr absl::Duration kLockTurn = absl::Milliseconds(300);

absl::Status CacheFailure(int error, const std::string& path) {
  if (error == ENOSPC || error == EDQUOT)
    return absl::ResourceExhaustedError(absl::StrCat("no space is left for ", path));
  if (error == ELOOP || error == ENOTDIR) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a link or no folder; remove it"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? CacheFailure(error.value(), path) : absl::OkStatus();
}

// Opens the folder `name` in another one, and creates it if it is missing.
absl::StatusOr<base::FileDescriptor> OpenFolderIn(int folder, const std::string& name, const std::string& path) {
  if (::mkdirat(folder, name.c_str(), 0777) != 0 && errno != EEXIST) return CacheFailure(errno, path);
  base::FileDescriptor opened(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.valid()) return CacheFailure(errno, path);
  return opened;
}

// Replaces what has this name by a link.
absl::Status ReplaceByLink(int folder, const std::string& name, const std::string& target, const std::string& path) {
  std::vector<char> present(target.size() + 1);
  const ssize_t length = ::readlinkat(folder, name.c_str(), present.data(), present.size());
  if (length >= 0 && std::string_view(present.data(), static_cast<size_t>(length)) == target) return absl::OkStatus();
  const std::string temporary = absl::StrCat(".", name.substr(0, 100), ".tessera.link");
  ::unlinkat(folder, temporary.c_str(), 0);
  if (::symlinkat(target.c_str(), folder, temporary.c_str()) != 0) return CacheFailure(errno, path);
  if (::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) return CacheFailure(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelCache> ModelCache::Open(const std::string& cache, const std::string& name, const PullHooks& hooks) {
  const std::string folder = base::HubModelFolder(cache, name);
  const std::string locks = absl::StrCat(cache, "/.locks/", fs::path(folder).filename().string());
  RETURN_IF_ERROR(MakeFolders(locks));
  bool is_announced = false;
  while (true) {
    RETURN_IF_ERROR(hooks.proceed());
    absl::StatusOr<base::ProcessLock> lock = base::ProcessLock::Take(absl::StrCat(locks, "/tessera.lock"), kLockTurn);
    if (lock.ok()) {
      RETURN_IF_ERROR(MakeFolders(absl::StrCat(folder, "/blobs")));
      return ModelCache(folder, *std::move(lock));
    }
    if (!absl::IsFailedPrecondition(lock.status())) return lock.status();
    if (!std::exchange(is_announced, true)) {
      hooks.on_event(absl::StrCat("another process downloads ", name, "; waiting for it"));
    }
  }
}

absl::Status ModelCache::Link(const std::string& commit, const std::map<std::string, std::string>& blob_names) const {
  const std::string snapshot = Snapshot(commit);
  RETURN_IF_ERROR(MakeFolders(fs::path(snapshot).parent_path().string()));
  const base::FileDescriptor snapshots(
      ::open(fs::path(snapshot).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!snapshots.valid()) return CacheFailure(errno, snapshot);
  const auto link = [&](const std::string& path, const std::string& blob) -> absl::Status {
    std::vector<std::string> parts = absl::StrSplit(path, '/');
    const std::string name = parts.back();
    parts.back() = commit;
    std::rotate(parts.begin(), parts.end() - 1, parts.end());
    std::string target = "../";
    base::FileDescriptor folder(::dup(snapshots.get()));
    for (const std::string& part : parts) {
      ASSIGN_OR_RETURN(folder, OpenFolderIn(folder.get(), part, absl::StrCat(snapshot, "/", path)));
      target += "../";
    }
    return ReplaceByLink(folder.get(), name, absl::StrCat(target, "blobs/", blob), absl::StrCat(snapshot, "/", path));
  };
  for (const auto& [path, blob] : blob_names) {
    if (path != kModelIndexFile) RETURN_IF_ERROR(link(path, blob));
  }
  if (const auto index = blob_names.find(kModelIndexFile); index != blob_names.end()) {
    RETURN_IF_ERROR(link(index->first, index->second));
  }
  // The links, and the names of the blobs before them, are on the disk before a ref names the commit.
  return ::syncfs(snapshots.get()) == 0 ? absl::OkStatus() : CacheFailure(errno, snapshot);
}

absl::Status ModelCache::SetRef(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return absl::OkStatus();
  const std::string path = absl::StrCat(folder_, "/refs/", revision);
  RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  return base::WriteFileAtomically(path, commit);
}

}  // namespace tessera::client
