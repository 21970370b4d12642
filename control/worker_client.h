// The front end's end of one worker's control channel: the command log of one rank.
//
// Commands get sequence numbers in the order in which they are sent; replies are matched to them. Every wait ends at
// its deadline and when the worker is gone; to end one earlier, kill the worker. Used by one thread.
//
// Errors: what the worker reports, with its code; UNAVAILABLE when the worker is gone, says things that the protocol
// does not know, or does not answer in time, after which it is of no more use.
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
#include "base/binary_fields.h"
#include "control/commands.h"
#include "control/image.h"

namespace tessera::control {

struct DecodedPicture {
  Image image;
  double seconds = 0;     // spent on decoding
  int32_t completed = 0;  // steps that were made of it
};

// UNAVAILABLE: a worker that sends such replies cannot be used any more.
absl::Status ProtocolError(absl::string_view what);

class WorkerClient {
 public:
  struct Options {
    int socket = -1;         // connected; owned by the client from here on
    absl::Duration timeout;  // for the answer to any one command
    // Says how the worker ended, when its stream has: "the worker was killed by signal 9 (Killed)".
    std::function<std::string()> ending;
    bool sends_results = true;  // rank 0 of its group: pixels and tensors come from there
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

  // As Send(MakeSteps) and Wait<MakeSteps>; FAILED_PRECONDITION if kMaxStepsInFlight of them are not answered yet.
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count);
  absl::StatusOr<std::vector<Stepped>> WaitForSteps(uint64_t sequence);

  // The reply to a DecodeJob that was sent. `started` has the size that is expected. The picture is empty where pixels
  // come from another rank.
  absl::StatusOr<DecodedPicture> WaitForDecode(uint64_t sequence, const JobStarted& started);
  // Of these commands one that is answered in full, the first by their order here if there are several. The first of
  // all when the worker is gone or gives no answer in time: the wait for it returns why.
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences);

 private:
  class Connection;

  uint64_t SendFields(uint32_t command, std::string fields);
  absl::StatusOr<std::string> WaitForFields(uint64_t sequence, uint32_t command);

  std::unique_ptr<Connection> connection_;
};

}  // namespace tessera::control
