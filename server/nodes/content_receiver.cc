#include "server/nodes/content_receiver.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "server/nodes/content_sender.h"

namespace tessera::server {
namespace {

constexpr std::chrono::minutes kSweepInterval{1};
// Above the largest adapter (server/adapters/adapter_file.h).
constexpr uint64_t kMostContentBytes = uint64_t{32} << 30;
constexpr size_t kMostTransfers = 1024;  // more than a node has ranks
// Each rank's sender has at most its window in flight.
constexpr size_t kMostQueuedBytes = size_t{256} << 20;
constexpr size_t kMostQueuedPieces = size_t{1} << 16;

}  // namespace

ContentReceiver::ContentReceiver(ContentStore& store, Send send)
    : store_(store), send_(std::move(send)), thread_(base::StartThread([this] { Run(); })) {}

ContentReceiver::~ContentReceiver() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

absl::Status ContentReceiver::Push(internal::ContentPiece piece) {
  const std::lock_guard lock(mutex_);
  queued_bytes_ += piece.bytes().size();
  if (queued_bytes_ > kMostQueuedBytes || queue_.size() >= kMostQueuedPieces) {
    return absl::InvalidArgumentError("the controller sends contents faster than it may");
  }
  queue_.push_back(std::move(piece));
  changed_.notify_all();
  return absl::OkStatus();
}

void ContentReceiver::Run() {
  while (true) {
    internal::ContentPiece piece;
    {
      std::unique_lock lock(mutex_);
      const bool woken = changed_.wait_for(lock, kSweepInterval, [this] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      if (woken) {
        piece = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= piece.bytes().size();
      }
    }
    if (!piece.digest().empty()) {
      Receive(piece);
    } else {
      store_.RemoveUnused({});
    }
  }
}

void ContentReceiver::Receive(const internal::ContentPiece& piece) {
  absl::StatusOr<std::string> path = "";
  uint64_t received = 0;
  if (piece.begins()) {
    path = Begin(piece);
  } else {
    const auto transfer = transfers_.find(piece.rank());
    // The rest of a content that was given up.
    if (transfer == transfers_.end() || transfer->second.digest != piece.digest()) return;
    path = Continue(transfer->second, piece);
    received = transfer->second.received;
    if (!path.ok() || !path->empty()) transfers_.erase(transfer);
  }
  internal::FromNode message;
  internal::ContentState& state = *message.mutable_content();
  state.set_rank(piece.rank());
  state.set_digest(piece.digest());
  state.set_received(received);
  if (path.ok()) {
    state.set_path(*path);
  } else {
    state.set_error(std::string(path.status().message()));
  }
  send_(std::move(message));
}

absl::StatusOr<std::string> ContentReceiver::Begin(const internal::ContentPiece& piece) {
  store_.RemoveUnused({});
  transfers_.erase(piece.rank());
  if (!base::IsSha256Text(piece.digest())) return absl::InvalidArgumentError("that is no digest of a content");
  // A node without a folder says so when it begins to write.
  const absl::StatusOr<Content> found = store_.Find(ContentOwner::Server(), piece.digest());
  if (found.ok()) return found->path;
  if (transfers_.size() >= kMostTransfers) return absl::ResourceExhaustedError("it receives too many contents");
  ASSIGN_OR_RETURN(ContentWriter writer, store_.Begin(ContentOwner::Server(), kMostContentBytes));
  Transfer& transfer = transfers_[piece.rank()];
  transfer.digest = piece.digest();
  transfer.writer.emplace(std::move(writer));
  return "";
}

absl::StatusOr<std::string> ContentReceiver::Continue(Transfer& transfer, const internal::ContentPiece& piece) {
  if (piece.bytes().size() > kContentPieceBytes) return absl::InvalidArgumentError("a piece is too large");
  if (!piece.ends()) {
    if (piece.part() != transfer.part) RETURN_IF_ERROR(transfer.writer->BeginPart(piece.part()));
    transfer.part = piece.part();
    RETURN_IF_ERROR(transfer.writer->Append(piece.bytes()));
    transfer.received += piece.bytes().size();
    return "";
  }
  ASSIGN_OR_RETURN(const Content content, transfer.writer->Commit());
  if (content.digest == piece.digest()) return content.path;
  return absl::DataLossError("the bytes that arrived are not those of the digest");
}

}  // namespace tessera::server
