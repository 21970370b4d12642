#include "control/protocol/worker_client.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/protocol/frames.h"
#include "control/protocol/job_commands.h"
#include "control/protocol/message_stream.h"

namespace tessera::control {
namespace {

constexpr size_t kMaxRepliesUnread = 4096;

}  // namespace

absl::Status ProtocolError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the worker broke the control protocol: ", what));
}

// The stream, and the replies that were read while waiting for another command's.
class WorkerClient::Connection {
 public:
  explicit Connection(Options options)
      : sends_results(options.sends_results),
        timeout_(options.timeout),
        ending_(std::move(options.ending)),
        stream_(base::FileDescriptor(options.socket), kMaxFrameBytes) {}

  uint64_t Send(uint32_t command, std::string fields) {
    waiting_[++last_sequence_];
    // A failed write means that the stream has ended; the wait for the reply returns the reason.
    stream_.Write(
        base::EncodeFields(CommandFrame{.sequence = last_sequence_, .command = command, .fields = std::move(fields)}));
    return last_sequence_;
  }

  // The next reply to command `sequence`, whose command number is `command`. None follow kDone or an error.
  absl::StatusOr<ReplyFrame> Wait(uint64_t sequence, uint32_t command) {
    const auto entry = waiting_.find(sequence);
    if (entry == waiting_.end())
      return absl::FailedPreconditionError(absl::StrCat("command ", sequence, " awaits no reply"));
    std::deque<ReplyFrame>& replies = entry->second;
    const absl::Duration deadline = base::SteadyNow() + timeout_;
    while (replies.empty()) RETURN_IF_ERROR(Read(deadline));
    ReplyFrame reply = std::move(replies.front());
    replies.pop_front();
    if (reply.kind != ReplyKind::kPart) waiting_.erase(entry);
    if (reply.command != command) return ProtocolError("a reply of the wrong kind");
    if (reply.kind != ReplyKind::kError) return reply;
    ErrorReply error;
    const absl::Status status = base::DecodeFields(reply.fields, error);
    return status.ok() ? StatusOf(error) : ProtocolError(status.message());
  }

  uint64_t WaitForAny(absl::Span<const uint64_t> sequences) {
    const absl::Duration deadline = base::SteadyNow() + timeout_;
    do {
      const auto answered = std::ranges::find_if(sequences, [&](uint64_t sequence) { return IsAnswered(sequence); });
      if (answered != sequences.end()) return *answered;
    } while (Read(deadline).ok());
    return sequences.front();
  }

  int steps_in_flight = 0;
  const bool sends_results;

 private:
  bool IsAnswered(uint64_t sequence) const {
    const auto entry = waiting_.find(sequence);
    if (entry == waiting_.end() || entry->second.empty()) return false;
    return entry->second.back().kind != ReplyKind::kPart;
  }

  // Reads the next reply to any command into `waiting_`. After an error other than the deadline's, no more replies
  // come.
  absl::Status Read(absl::Duration deadline) {
    RETURN_IF_ERROR(broken_);
    std::string message;
    switch (stream_.Read(message, deadline - base::SteadyNow())) {
      case MessageStream::Event::kMessage:
        break;
      case MessageStream::Event::kTimeout:
        return absl::UnavailableError(
            absl::StrCat("the worker did not answer within ", absl::FormatDuration(timeout_)));
      case MessageStream::Event::kEnd:
        return absl::UnavailableError(ending_());
      case MessageStream::Event::kBroken:
        return Break("a malformed message");
    }
    ReplyFrame reply;
    if (!base::DecodeFields(message, reply).ok()) return Break("a malformed message");
    const auto entry = waiting_.find(reply.sequence);
    if (entry == waiting_.end()) {
      return Break(absl::StrCat("a reply to command ", reply.sequence, ", which awaits none"));
    }
    if (entry->second.size() >= kMaxRepliesUnread) return Break("more replies to one command than there can be");
    entry->second.push_back(std::move(reply));
    return absl::OkStatus();
  }

  absl::Status Break(const std::string& reason) {
    stream_.End();
    return broken_ = ProtocolError(reason);
  }

  const absl::Duration timeout_;
  const std::function<std::string()> ending_;
  MessageStream stream_;
  uint64_t last_sequence_ = 0;
  std::map<uint64_t, std::deque<ReplyFrame>> waiting_;  // commands without a complete reply
  absl::Status broken_;                                 // why further replies are ignored
};

WorkerClient::WorkerClient(Options options) : connection_(std::make_unique<Connection>(std::move(options))) {}

WorkerClient::~WorkerClient() = default;

uint64_t WorkerClient::SendFields(uint32_t command, std::string fields) {
  return connection_->Send(command, std::move(fields));
}

absl::StatusOr<std::string> WorkerClient::WaitForFields(uint64_t sequence, uint32_t command) {
  ASSIGN_OR_RETURN(ReplyFrame reply, connection_->Wait(sequence, command));
  if (reply.kind != ReplyKind::kDone) return ProtocolError("a reply of the wrong kind");
  return std::move(reply.fields);
}

absl::StatusOr<uint64_t> WorkerClient::SendSteps(absl::Span<const uint64_t> jobs, int32_t count) {
  if (connection_->steps_in_flight == kMaxStepsInFlight) {
    return absl::FailedPreconditionError(absl::StrCat(kMaxStepsInFlight, " steps are in flight already"));
  }
  ++connection_->steps_in_flight;
  return Send(MakeSteps{.jobs = {jobs.begin(), jobs.end()}, .count = count});
}

absl::StatusOr<std::vector<Stepped>> WorkerClient::WaitForSteps(uint64_t sequence) {
  absl::StatusOr<StepsMade> made = Wait<MakeSteps>(sequence);
  if (made.status().code() != absl::StatusCode::kFailedPrecondition) --connection_->steps_in_flight;
  if (!made.ok()) return made.status();
  return std::move(made->steps);
}

uint64_t WorkerClient::WaitForAny(absl::Span<const uint64_t> sequences) { return connection_->WaitForAny(sequences); }

absl::StatusOr<DecodedPicture> WorkerClient::WaitForDecode(uint64_t sequence, const JobStarted& started) {
  DecodedPicture picture;
  Frames& image = picture.image;
  image = ShapeOf(started);
  const size_t row_bytes = image.row_bytes(), all_bytes = image.rows() * row_bytes;
  if (connection_->sends_results) image.bytes.reserve(all_bytes);
  while (true) {
    ASSIGN_OR_RETURN(const ReplyFrame reply, connection_->Wait(sequence, kCommandNumber<DecodeJob>));
    if (reply.kind == ReplyKind::kDone) {
      Decoded decoded;
      if (const absl::Status status = base::DecodeFields(reply.fields, decoded); !status.ok()) {
        return ProtocolError(status.message());
      }
      if (image.bytes.size() != (connection_->sends_results ? all_bytes : 0) || !ShapeOf(decoded).has_shape_of(image)) {
        return ProtocolError("an image of another size than announced");
      }
      picture.seconds = decoded.seconds;
      picture.completed = decoded.completed;
      return picture;
    }
    Rows rows;
    if (!base::DecodeFields(reply.fields, rows).ok() || rows.bytes.empty() || rows.bytes.size() % row_bytes != 0 ||
        rows.bytes.size() > all_bytes - image.bytes.size() ||
        rows.first != static_cast<int64_t>(image.bytes.size() / row_bytes)) {
      return ProtocolError("rows that are not consecutive");
    }
    image.bytes.insert(image.bytes.end(), rows.bytes.begin(), rows.bytes.end());
  }
}

}  // namespace tessera::control
