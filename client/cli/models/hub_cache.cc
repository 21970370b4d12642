#include "client/cli/models/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/hub_folders.h"
#include "base/text/hub_name.h"
#include "control/model/pipelines.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr char kModelIndex[] = "model_index.json";
constexpr size_t kMaxCommitBytes = 64;

bool IsCommit(std::string_view text) {
  const auto is_digit = [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); };
  return !text.empty() && text.size() <= kMaxCommitBytes && std::all_of(text.begin(), text.end(), is_digit);
}

// Returns "; PURPOSE with: tessera pull NAME", or why the model cannot be run.
std::string PullAdvice(const std::string& name, const std::string& purpose) {
  const std::string problem = control::RepositoryProblem(name);
  return problem.empty() ? absl::StrCat("; ", purpose, " with: tessera pull ", name) : absl::StrCat("; ", problem);
}

absl::Status Incomplete(const std::string& name, const std::string& lack) {
  return absl::FailedPreconditionError(
      absl::StrCat("the hub's cache has ", name, " without ", lack, PullAdvice(name, "complete the download")));
}

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool IsFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace

absl::StatusOr<std::string> SnapshotIn(const std::string& folder, const std::string& name) {
  const fs::path snapshots = fs::path(folder) / "snapshots";
  fs::path snapshot;
  if (const fs::path ref = fs::path(folder) / "refs/main"; IsFile(ref)) {
    const std::string text = base::ReadSmallFile(ref, kMaxCommitBytes).value_or("");
    const std::string commit(absl::StripAsciiWhitespace(text));
    if (!IsCommit(commit)) return Incomplete(name, "a refs/main that names a commit");
    snapshot = snapshots / commit;
  } else {
    std::error_code error;
    size_t count = 0;
    for (fs::directory_iterator entry(snapshots, error), end; !error && entry != end; entry.increment(error)) {
      if (!IsFolder(entry->path())) continue;
      snapshot = entry->path();
      ++count;
    }
    if (count > 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("the hub's cache has ", count, " snapshots of ", name,
                       " and does not record which is the newest; name one of the folders in its \"snapshots\""));
    }
  }
  if (snapshot.empty() || !IsFolder(snapshot)) return Incomplete(name, "its snapshot");
  if (!IsFile(snapshot / kModelIndex)) return Incomplete(name, "its model_index.json");
  return snapshot.string();
}

absl::StatusOr<std::string> FindInHubCache(const std::string& name) {
  const std::string cache = base::HubCacheFolder();
  const std::string folder = base::HubModelFolder(cache, name);
  if (cache.empty() || !IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat("model '", name, "' is neither a folder nor in the hub's cache",
                                            cache.empty() ? "" : absl::StrCat(" '", cache, "'"),
                                            PullAdvice(name, "download it")));
  }
  return SnapshotIn(folder, name);
}

std::optional<std::string> HubNameOfSnapshot(const std::string& path) {
  const fs::path snapshots = fs::path(path).parent_path();
  if (snapshots.filename() != "snapshots") return std::nullopt;
  const std::string folder = snapshots.parent_path().filename().string();
  return folder.starts_with(base::kHubFolderPrefix) ? base::ReadHubName(folder) : std::nullopt;
}

}  // namespace tessera::client
