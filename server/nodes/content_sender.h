// ContentSender brings contents to the host of one rank before the rank reads them: in pieces over the node's stream,
// unless the node has them. Few bytes are sent before the node has written earlier ones, so that a large content
// neither fills the queue of the stream nor delays other ranks' messages for long.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/internal/node.pb.h"

namespace tessera::server {

// Bytes of one piece, and of all pieces that a node has not confirmed.
inline constexpr size_t kContentPieceBytes = size_t{1} << 20;
inline constexpr size_t kContentWindowBytes = 8 * kContentPieceBytes;

class ContentSender final {
 public:
  using Send = std::function<void(internal::ContentPiece piece)>;  // does not wait; sets the piece's rank

  explicit ContentSender(Send send) : send_(std::move(send)) {}

  // Returns the path at which the node has the content, which is at `path` on this host. UNAVAILABLE: the rank has
  // ended, or the node does not answer. RESOURCE_EXHAUSTED: the node does not take it, with the node's reason.
  // DATA_LOSS: its files are damaged. One call at a time.
  absl::StatusOr<std::string> Bring(const std::string& digest, const std::string& path);

  // These may be called on any thread.
  void OnState(const internal::ContentState& state);
  // The rank has ended, and so does Bring. `state` says how, such as "is lost with its node: …".
  void OnEnded(const std::string& state);

 private:
  absl::Status SendFile(const std::string& digest, const std::string& path, const std::string& part);
  void SendPiece(const std::string& digest, const std::string& part, std::string bytes, bool begins, bool ends);
  std::string PathOnNode();
  // Waits until `reached` returns true for the node's state.
  absl::Status WaitUntil(absl::FunctionRef<bool()> reached);

  const Send send_;
  uint64_t sent_ = 0;  // bytes of the current content; used by Bring
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  internal::ContentState state_;  // of the current content
  bool has_answered_ = false;
  std::optional<std::string> ended_;  // how the rank ended
};

}  // namespace tessera::server
