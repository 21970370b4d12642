#include "client/cli/pull/model_pull.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files/hub_folders.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "client/cli/exit_code.h"
#include "client/cli/models/published_models.h"
#include "client/cli/pull/blob_downloads.h"
#include "client/cli/pull/file_selection.h"
#include "client/cli/pull/http_client.h"
#include "client/cli/pull/model_cache.h"
#include "control/model/pipelines.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSpareBytes = uint64_t{64} << 20;  // for the records and the file system itself

bool HasBlob(const std::string& folder, const HubFile& file) {
  const std::string name = BlobName(file);
  std::error_code error;
  return !name.empty() && fs::file_size(absl::StrCat(folder, "/blobs/", name), error) == file.size && !error;
}

PullPlan Planned(const PullOptions& options, const std::string& folder, const HubListing& listing,
                 const PipelineIndex& index, const FileSelection& selection) {
  PullPlan plan = {.model = options.model,
                   .commit = listing.commit,
                   .pipeline = index.class_name,
                   .licence = listing.licence,
                   .gated = listing.gated,
                   .snapshot = absl::StrCat(folder, "/snapshots/", listing.commit),
                   .files = selection.files.size(),
                   .listed_files = listing.files.size(),
                   .foreign = selection.foreign};
  for (const HubFile& file : selection.files) {
    plan.bytes += file.size;
    plan.unchecked_files += BlobName(file).empty() ? 1 : 0;
    if (HasBlob(folder, file)) continue;
    plan.missing_bytes += file.size;
    ++plan.missing_files;
  }
  return plan;
}

absl::Status CheckSpace(const std::string& folder, uint64_t missing) {
  struct statvfs space;
  if (::statvfs(folder.c_str(), &space) != 0) return absl::OkStatus();
  const uint64_t free = uint64_t{space.f_bavail} * space.f_frsize;
  if (missing == 0 || free >= missing + kSpareBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the download needs ", base::ByteText(missing), ", and ",
                                                   base::ByteText(free), " are free in ", folder));
}

// What earlier runs left of the missing files takes no further space.
uint64_t LeftBytes(const std::string& blobs, const std::vector<HubFile>& files) {
  uint64_t bytes = 0;
  for (const HubFile& file : files) {
    struct stat state;
    const std::string path = absl::StrCat(blobs, "/", BlobName(file), ".tessera.incomplete");
    if (::stat(path.c_str(), &state) == 0) bytes += static_cast<uint64_t>(state.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<PullPlan> PullModel(const HubSettings& settings, const PullOptions& options, const PullHooks& hooks) {
  ASSIGN_OR_RETURN(const std::unique_ptr<HttpClient> http, HttpClient::Create(options.stall));
  HubRequests requests(*http, settings, options.model, hooks);
  ASSIGN_OR_RETURN(const HubListing listing, At(Stage::kModel, requests.List()));
  ASSIGN_OR_RETURN(const std::string index_text, At(Stage::kModel, requests.Fetch(listing, "model_index.json")));
  ASSIGN_OR_RETURN(const PipelineIndex index, At(Stage::kModel, ParsePipelineIndex(index_text)));
  if (const std::string problem = control::PipelineProblem(index.class_name); !problem.empty()) {
    return At(Stage::kModel, absl::FailedPreconditionError(absl::StrCat(options.model.name, ": ", problem)));
  }
  ASSIGN_OR_RETURN(const FileSelection selection, At(Stage::kModel, SelectFiles(listing, index, options.only)));
  const std::string folder = base::HubModelFolder(settings.cache, options.model.name);
  PullPlan plan = Planned(options, folder, listing, index, selection);
  options.on_plan(plan);
  if (options.dry_run) return plan;

  ASSIGN_OR_RETURN(const ModelCache cache,
                   At(Stage::kOutput, ModelCache::Open(settings.cache, options.model.name, hooks)));
  const uint64_t left = LeftBytes(cache.blobs(), selection.files);
  RETURN_IF_ERROR(
      At(Stage::kOutput, CheckSpace(cache.blobs(), plan.missing_bytes - std::min(left, plan.missing_bytes))));
  absl::StatusOr<std::map<std::string, std::string>> names = [&] {
    BlobDownloads downloads(*http, requests, settings, options.model, hooks,
                            {.commit = listing.commit, .blobs = cache.blobs(), .on_bytes = options.on_bytes});
    return downloads.Run(selection.files);
  }();
  if (absl::IsResourceExhausted(names.status())) return At(Stage::kOutput, names.status());
  RETURN_IF_ERROR(At(Stage::kModel, names.status()));
  RETURN_IF_ERROR(At(Stage::kOutput, cache.Link(listing.commit, *names)));
  RETURN_IF_ERROR(At(Stage::kOutput, cache.SetRef(options.model.revision, listing.commit)));
  return plan;
}

}  // namespace tessera::client
