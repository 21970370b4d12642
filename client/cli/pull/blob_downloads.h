// BlobDownloads downloads files of a repository into the blobs of the hub's cache: several ranges at once, each
// continued at its byte after a failure. The digest of a file is computed while it arrives; only a file whose digest is
// right gets its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/task_pool.h"
#include "client/cli/pull/blob_file.h"
#include "client/cli/pull/content_digest.h"
#include "client/cli/pull/http_client.h"
#include "client/cli/pull/hub_listing.h"
#include "client/cli/pull/hub_requests.h"
#include "client/cli/pull/web_url.h"

namespace tessera::client {

// Returns the name of a file's blob as the hub's tools name it: its digest. Empty if no digest is listed.
std::string BlobName(const HubFile& file);

// Used by one thread; it has another one for digests.
class BlobDownloads {
 public:
  static constexpr size_t kConnections = 8;

  struct Target {
    std::string commit;
    std::string blobs;                             // folder
    std::function<void(uint64_t bytes)> on_bytes;  // so many more have arrived, or were there already
  };

  BlobDownloads(HttpClient& http, const HubRequests& requests, const HubSettings& settings, const HubModel& model,
                const PullHooks& hooks, Target target);
  ~BlobDownloads();

  // Returns the name of each file's blob, by path. Blobs that are there already are not downloaded again.
  absl::StatusOr<std::map<std::string, std::string>> Run(const std::vector<HubFile>& files);

 private:
  struct File;
  struct Piece;
  struct Transfer;

  absl::Status OpenFile(const HubFile& wanted);
  void QueuePieces(File& file);
  void StartRequests();
  void Start(Piece piece);
  absl::Status OnHead(Transfer& transfer, const HttpHead& head);
  absl::Status OnBody(Transfer& transfer, std::string_view bytes);
  absl::Status OnDone(Transfer& transfer, const HttpResult& result);
  absl::Status OnRefusal(Transfer& transfer, const HttpHead& head);
  void Requeue(const Piece& piece);
  absl::Status Retry(Transfer& transfer, const absl::Status& error, const HttpHead& head);
  absl::Status OnDigest(File& file, const absl::Status& status);
  // Passes the bytes that are there without a gap to the thread of the digests.
  void AdvanceDigest(File& file);

  HttpClient& http_;
  const HubRequests& requests_;
  const HubSettings& settings_;
  const HubModel& model_;
  const PullHooks& hooks_;
  const Target target_;
  std::string endpoint_origin_;
  bool endpoint_is_secure_ = true;
  std::map<std::string, std::string> names_;  // of finished blobs, by the files' paths
  std::vector<std::unique_ptr<File>> files_;
  std::deque<Piece> waiting_;
  absl::Status error_;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::vector<std::pair<File*, absl::Status>> digested_;  // guarded by mutex_
  base::TaskPool digests_;
};

}  // namespace tessera::client
