// ContentReceiver stores the contents that the controller sends for ranks of this node, and removes them some time
// after their last use. A thread does the work of the disk, so the node's stream never waits for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/content/content_store.h"
#include "tessera/internal/node.pb.h"

namespace tessera::server {

class ContentReceiver final {
 public:
  using Send = std::function<void(internal::FromNode message)>;  // does not wait

  // The store must outlive this object. Contents are the server's own in it.
  ContentReceiver(ContentStore& store, Send send);
  ~ContentReceiver();

  ContentReceiver(const ContentReceiver&) = delete;
  ContentReceiver& operator=(const ContentReceiver&) = delete;

  // Takes a piece. INVALID_ARGUMENT: the controller does not wait for answers as it must, and the stream must end.
  absl::Status Push(internal::ContentPiece piece);

 private:
  // A content that is being received for a rank.
  struct Transfer {
    std::string digest, part;
    uint64_t received = 0;
    std::optional<ContentWriter> writer;
  };

  void Run();
  void Receive(const internal::ContentPiece& piece);
  // Returns the content's path if it is complete, else an empty text.
  absl::StatusOr<std::string> Begin(const internal::ContentPiece& piece);
  absl::StatusOr<std::string> Continue(Transfer& transfer, const internal::ContentPiece& piece);

  ContentStore& store_;
  const Send send_;
  std::map<uint64_t, Transfer> transfers_;  // by rank; used by the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<internal::ContentPiece> queue_;
  size_t queued_bytes_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tessera::server
