// WorkerClient is the front end's end of one worker's control channel: it sends the command log of one rank.
//
// Commands get sequence numbers in the order in which they are sent, and replies are matched to them. Every wait ends
// at its deadline or when the worker ends; to end one earlier, kill the worker. Used by one thread.
//
// Errors: the worker's own, with their code; UNAVAILABLE if the worker has ended, violates the protocol or does not
// reply in time. After UNAVAILABLE the client cannot be used again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/fields/binary_fields.h"
#include "control/pictures/picture_frames.h"
#include "control/protocol/command_number.h"
#include "control/protocol/job_replies.h"

namespace tessera::control {

struct DecodedPicture {
  Frames image;
  double seconds = 0;     // spent on decoding
  int32_t completed = 0;  // steps that the job has run at the time of decoding
};

// UNAVAILABLE: a worker that sends such replies must not be used any more.
absl::Status ProtocolError(absl::string_view what);

class WorkerClient {
 public:
  struct Options {
    int socket = -1;         // connected; owned by the client from here on
    absl::Duration timeout;  // for the reply to any one command
    // Describes how the worker ended, once its stream has: "the worker was killed by signal 9 (Killed)".
    std::function<std::string()> ending;
    bool sends_results = true;  // whether this is rank 0 of its group, which sends pixels and tensors
  };

  static constexpr int kMaxStepsInFlight = 2;  // commands

  explicit WorkerClient(Options options);
  ~WorkerClient();

  // Sends a command and waits for its reply.
  template <class Command>
  absl::StatusOr<typename Command::Reply> Call(const Command& command) {
    return Wait<Command>(Send(command));
  }

  // Sends a command without waiting for its reply, and returns its sequence number, which Wait takes.
  template <class Command>
  uint64_t Send(const Command& command) {
    return SendFields(kCommandNumber<Command>, base::EncodeFields(command));
  }
  template <class Command>
  absl::StatusOr<typename Command::Reply> Wait(uint64_t sequence) {
    const absl::StatusOr<std::string> fields = WaitForFields(sequence, kCommandNumber<Command>);
    if (!fields.ok()) return fields.status();
    typename Command::Reply reply;
    if (const absl::Status status = base::DecodeFields(*fields, reply); !status.ok()) {
      return ProtocolError(status.message());
    }
    return reply;
  }

  // Like Send(MakeSteps) and Wait<MakeSteps>. FAILED_PRECONDITION if kMaxStepsInFlight step commands are unanswered.
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count);
  absl::StatusOr<std::vector<Stepped>> WaitForSteps(uint64_t sequence);

  // Returns the reply to a DecodeJob that was sent. `started` has the expected shape. The picture has no bytes if
  // another rank sends the pixels.
  absl::StatusOr<DecodedPicture> WaitForDecode(uint64_t sequence, const JobStarted& started);
  // Returns one of these commands that has its complete reply, the first in this order if there are several. If the
  // worker has ended or does not reply in time, returns the first of all; waiting for it then returns the error.
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences);

 private:
  class Connection;

  uint64_t SendFields(uint32_t command, std::string fields);
  absl::StatusOr<std::string> WaitForFields(uint64_t sequence, uint32_t command);

  std::unique_ptr<Connection> connection_;
};

}  // namespace tessera::control
