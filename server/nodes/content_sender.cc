#include "server/nodes/content_sender.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "server/content/content_store.h"

namespace tessera::server {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{60};  // since the node's last answer
constexpr size_t kMostReasonBytes = 200;
constexpr size_t kMostPathBytes = 4096;

}  // namespace

absl::StatusOr<std::string> ContentSender::Bring(const std::string& digest, const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOfContent(path));
  {
    const std::lock_guard lock(mutex_);
    state_.Clear();
    state_.set_digest(digest);
    has_answered_ = false;
  }
  sent_ = 0;
  SendPiece(digest, "", "", /*begins=*/true, /*ends=*/false);
  RETURN_IF_ERROR(WaitUntil([&] { return has_answered_; }));
  if (PathOnNode().empty()) {
    for (size_t i = 0; i < files.size(); ++i) {
      RETURN_IF_ERROR(SendFile(digest, files[i], files.size() > 1 ? kContentParts[i] : ""));
    }
    SendPiece(digest, "", "", /*begins=*/false, /*ends=*/true);
    RETURN_IF_ERROR(WaitUntil([&] { return !state_.path().empty(); }));
  }
  return PathOnNode();
}

std::string ContentSender::PathOnNode() {
  const std::lock_guard lock(mutex_);
  return state_.path();
}

absl::Status ContentSender::SendFile(const std::string& digest, const std::string& path, const std::string& part) {
  ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, absl::StrCat("content ", digest)));
  uint64_t at = 0;
  do {
    std::string bytes(std::min<uint64_t>(kContentPieceBytes, file.size() - at), '\0');
    RETURN_IF_ERROR(file.Read(at, std::as_writable_bytes(std::span(bytes))));
    at += bytes.size();
    RETURN_IF_ERROR(WaitUntil([&] { return sent_ + bytes.size() <= state_.received() + kContentWindowBytes; }));
    sent_ += bytes.size();
    SendPiece(digest, part, std::move(bytes), /*begins=*/false, /*ends=*/false);
  } while (at < file.size());
  return absl::OkStatus();
}

void ContentSender::SendPiece(const std::string& digest, const std::string& part, std::string bytes, bool begins,
                              bool ends) {
  internal::ContentPiece piece;
  piece.set_digest(digest);
  piece.set_part(part);
  piece.set_bytes(std::move(bytes));
  piece.set_begins(begins);
  piece.set_ends(ends);
  send_(std::move(piece));
}

absl::Status ContentSender::WaitUntil(absl::FunctionRef<bool()> reached) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (ended_) {
      return absl::UnavailableError(absl::StrCat("while a content was sent to its host, the rank ", *ended_));
    }
    if (!state_.error().empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the host of a rank does not take a content: ", state_.error().substr(0, kMostReasonBytes)));
    }
    if (reached()) return absl::OkStatus();
    if (changed_.wait_for(lock, kAnswerTimeout) == std::cv_status::timeout) {
      return absl::UnavailableError("the host of a rank does not take a content in time");
    }
  }
}

void ContentSender::OnState(const internal::ContentState& state) {
  const std::lock_guard lock(mutex_);
  // An answer about an earlier content, which was given up, may be late. Workers refuse paths that are not absolute.
  if (state.digest() != state_.digest() || state.path().size() > kMostPathBytes) return;
  state_ = state;
  has_answered_ = true;
  changed_.notify_all();
}

void ContentSender::OnEnded(const std::string& state) {
  const std::lock_guard lock(mutex_);
  ended_ = state;
  changed_.notify_all();
}

}  // namespace tessera::server
