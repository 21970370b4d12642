#include "control/worker_client.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "control/command_wire.h"
#include "control/job_parameters_wire.h"
#include "control/message_stream.h"
#include "tessera/internal/control.pb.h"

namespace tessera::control {
namespace {

using internal::Command;
using internal::Reply;

constexpr size_t kMaxReplyBytes = 4 << 20;
constexpr size_t kMaxRepliesUnread = 4096;
constexpr size_t kMaxLatentBytes = size_t{1} << 27;

}  // namespace

// The stream, and the replies to each command that were read while another one's were waited for.
class WorkerClient::Connection {
 public:
  explicit Connection(Options options)
      : sends_results(options.sends_results),
        timeout_(options.timeout),
        ending_(std::move(options.ending)),
        stream_(base::FileDescriptor(options.socket), kMaxReplyBytes) {}

  absl::StatusOr<uint64_t> Send(Command command) {
    command.set_sequence(++last_sequence_);
    waiting_[last_sequence_];
    // A failed write means that the stream has ended, which the wait for the reply tells better.
    stream_.Write(command);
    return last_sequence_;
  }

  // The next reply to command `sequence`; `last` tells which kind ends it, as does an error.
  absl::StatusOr<Reply> Wait(uint64_t sequence, Reply::KindCase last) {
    const auto entry = waiting_.find(sequence);
    if (entry == waiting_.end()) return absl::FailedPreconditionError(absl::StrCat("no command ", sequence, " waits"));
    std::deque<Reply>& replies = entry->second;
    const absl::Duration deadline = base::SteadyNow() + timeout_;
    while (replies.empty()) RETURN_IF_ERROR(Read(deadline));
    Reply reply = std::move(replies.front());
    replies.pop_front();
    if (reply.kind_case() == last || reply.has_error()) waiting_.erase(entry);
    if (reply.has_error()) return FromWire(reply.error());
    return reply;
  }

  uint64_t WaitForAny(absl::Span<const uint64_t> sequences) {
    const absl::Duration deadline = base::SteadyNow() + timeout_;
    do {
      const auto answered = std::ranges::find_if(sequences, [&](uint64_t sequence) { return IsAnswered(sequence); });
      if (answered != sequences.end()) return *answered;
    } while (Read(deadline).ok());
    return sequences.front();
  }

  // Sends a command that has one reply of kind `kind`, and waits for it.
  absl::StatusOr<Reply> Call(Command command, Reply::KindCase kind) {
    ASSIGN_OR_RETURN(uint64_t sequence, Send(std::move(command)));
    return WaitFor(sequence, kind);
  }

  absl::StatusOr<Reply> WaitFor(uint64_t sequence, Reply::KindCase kind) {
    absl::StatusOr<Reply> reply = Wait(sequence, kind);
    if (reply.ok() && reply->kind_case() != kind) return ProtocolError("a reply of the wrong kind");
    return reply;
  }

  // The parts of a tensor and its shape.
  absl::StatusOr<LatentValues> CallForValues(Command command) {
    ASSIGN_OR_RETURN(uint64_t sequence, Send(std::move(command)));
    std::string bytes;
    while (true) {
      ASSIGN_OR_RETURN(Reply reply, Wait(sequence, Reply::kTensor));
      if (reply.has_part() && bytes.size() + reply.part().values().size() <= kMaxLatentBytes) {
        bytes += reply.part().values();
        continue;
      }
      if (!reply.has_tensor()) return ProtocolError("a reply of the wrong kind");
      LatentValues latents = {.shape = {reply.tensor().shape().begin(), reply.tensor().shape().end()}};
      if (!sends_results && bytes.empty()) return latents;
      size_t count = 1;
      for (int64_t size : latents.shape) {
        if (size < 1 || static_cast<uint64_t>(size) > kMaxLatentBytes / count) return ProtocolError("an invalid shape");
        count *= static_cast<size_t>(size);
      }
      if (bytes.size() != count * sizeof(double)) return ProtocolError("a tensor of another size than its shape");
      latents.values.resize(count);
      std::memcpy(latents.values.data(), bytes.data(), bytes.size());
      return latents;
    }
  }

  int steps_in_flight = 0;
  const bool sends_results;

 private:
  bool IsAnswered(uint64_t sequence) const {
    const auto entry = waiting_.find(sequence);
    if (entry == waiting_.end() || entry->second.empty()) return false;
    const Reply& last = entry->second.back();
    return !last.has_rows() && !last.has_part();
  }

  // The next reply of any command, into `waiting_`. After an error other than of the deadline nothing comes any more.
  absl::Status Read(absl::Duration deadline) {
    RETURN_IF_ERROR(broken_);
    Reply reply;
    switch (stream_.Read(reply, deadline - base::SteadyNow())) {
      case MessageStream::Event::kMessage:
        break;
      case MessageStream::Event::kTimeout:
        return absl::UnavailableError(
            absl::StrCat("the worker gave no answer within ", absl::FormatDuration(timeout_)));
      case MessageStream::Event::kEnd:
        return absl::UnavailableError(ending_());
      case MessageStream::Event::kBroken:
        return Break("what is no message");
    }
    const auto entry = waiting_.find(reply.sequence());
    if (entry == waiting_.end()) {
      return Break(absl::StrCat("a reply to command ", reply.sequence(), ", which does not wait for one"));
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
  std::map<uint64_t, std::deque<Reply>> waiting_;  // commands that are not answered in full
  absl::Status broken_;                            // why nothing that comes counts any more
};

WorkerClient::WorkerClient(Options options) : connection_(std::make_unique<Connection>(std::move(options))) {}

WorkerClient::~WorkerClient() = default;

absl::StatusOr<ModelDescription> WorkerClient::Describe(const std::string& model) {
  Command command;
  command.mutable_describe()->set_model(model);
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kDescription));
  return FromWire(reply.description());
}

absl::StatusOr<DeviceIdentity> WorkerClient::Identify(const std::string& device) {
  Command command;
  command.mutable_identify()->set_device(device);
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kIdentified));
  return FromWire(reply.identified());
}

absl::StatusOr<Loaded> WorkerClient::Load(const LoadParameters& parameters) {
  Command command;
  ToWire(parameters, command.mutable_load());
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kLoaded));
  return FromWire(reply.loaded());
}

absl::StatusOr<uint64_t> WorkerClient::SendStartJob(uint64_t job, const JobParameters& parameters) {
  Command command;
  command.mutable_start_job()->set_job(job);
  ToWire(parameters, command.mutable_start_job()->mutable_parameters());
  return connection_->Send(std::move(command));
}

absl::StatusOr<JobStarted> WorkerClient::WaitForStart(uint64_t sequence) {
  ASSIGN_OR_RETURN(Reply reply, connection_->WaitFor(sequence, Reply::kStarted));
  return FromWire(reply.started());
}

absl::StatusOr<JobStarted> WorkerClient::StartJob(uint64_t job, const JobParameters& parameters) {
  ASSIGN_OR_RETURN(const uint64_t sequence, SendStartJob(job, parameters));
  return WaitForStart(sequence);
}

absl::StatusOr<int32_t> WorkerClient::EncodePrompts(absl::Span<const JobParameters> jobs) {
  Command command;
  command.mutable_encode_prompts();
  for (const JobParameters& job : jobs) ToWire(job, command.mutable_encode_prompts()->add_parameters());
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kEncoded));
  return reply.encoded().prompts();
}

absl::StatusOr<uint64_t> WorkerClient::SendSteps(absl::Span<const uint64_t> jobs, int32_t count) {
  if (connection_->steps_in_flight == kMaxStepsInFlight) {
    return absl::FailedPreconditionError(absl::StrCat(kMaxStepsInFlight, " steps are under way already"));
  }
  Command command;
  command.mutable_step()->mutable_jobs()->Assign(jobs.begin(), jobs.end());
  command.mutable_step()->set_count(count);
  absl::StatusOr<uint64_t> sequence = connection_->Send(std::move(command));
  if (sequence.ok()) ++connection_->steps_in_flight;
  return sequence;
}

absl::StatusOr<std::vector<Stepped>> WorkerClient::WaitForSteps(uint64_t sequence) {
  absl::StatusOr<Reply> reply = connection_->WaitFor(sequence, Reply::kStepped);
  if (reply.status().code() != absl::StatusCode::kFailedPrecondition) --connection_->steps_in_flight;
  if (!reply.ok()) return reply.status();
  return FromWire(reply->stepped());
}

uint64_t WorkerClient::WaitForAny(absl::Span<const uint64_t> sequences) { return connection_->WaitForAny(sequences); }

absl::StatusOr<uint64_t> WorkerClient::SendDecode(uint64_t job) {
  Command command;
  command.mutable_decode()->set_job(job);
  return connection_->Send(std::move(command));
}

absl::StatusOr<DecodedPicture> WorkerClient::WaitForDecode(uint64_t sequence, const JobStarted& started) {
  DecodedPicture picture;
  Image& image = picture.image;
  image.height = started.height;
  image.width = started.width;
  const size_t row_bytes = static_cast<size_t>(image.width) * 3;
  const size_t all_bytes = row_bytes * image.height;
  if (connection_->sends_results) image.rgb.reserve(all_bytes);
  while (true) {
    ASSIGN_OR_RETURN(Reply reply, connection_->Wait(sequence, Reply::kDecoded));
    if (reply.has_decoded()) {
      if (image.rgb.size() != (connection_->sends_results ? all_bytes : 0) ||
          reply.decoded().height() != image.height || reply.decoded().width() != image.width) {
        return ProtocolError("an image of another size than announced");
      }
      picture.seconds = reply.decoded().seconds();
      picture.completed = reply.decoded().completed();
      return picture;
    }
    const std::string& rgb = reply.rows().rgb();
    if (!reply.has_rows() || rgb.empty() || rgb.size() % row_bytes != 0 || rgb.size() > all_bytes - image.rgb.size() ||
        reply.rows().first() != static_cast<int64_t>(image.rgb.size() / row_bytes)) {
      return ProtocolError("rows that do not follow each other");
    }
    image.rgb.insert(image.rgb.end(), rgb.begin(), rgb.end());
  }
}

absl::StatusOr<LatentValues> WorkerClient::Latents(uint64_t job) {
  Command command;
  command.mutable_latents()->set_job(job);
  return connection_->CallForValues(std::move(command));
}

absl::StatusOr<LatentValues> WorkerClient::Predict(uint64_t job, const LatentValues& latents,
                                                   absl::Span<const uint64_t> beside) {
  Command command;
  internal::Predict& predict = *command.mutable_predict();
  predict.set_job(job);
  predict.mutable_shape()->Assign(latents.shape.begin(), latents.shape.end());
  predict.set_values(latents.values.data(), latents.values.size() * sizeof(double));
  predict.mutable_beside()->Assign(beside.begin(), beside.end());
  return connection_->CallForValues(std::move(command));
}

absl::StatusOr<uint64_t> WorkerClient::SendEndJob(uint64_t job) {
  Command command;
  command.mutable_end_job()->set_job(job);
  return connection_->Send(std::move(command));
}

absl::Status WorkerClient::WaitForEnd(uint64_t sequence) {
  return connection_->WaitFor(sequence, Reply::kEnded).status();
}

absl::Status WorkerClient::EndJob(uint64_t job) {
  ASSIGN_OR_RETURN(const uint64_t sequence, SendEndJob(job));
  return WaitForEnd(sequence);
}

absl::StatusOr<TrainingStarted> WorkerClient::StartTraining(const TrainingStart& start) {
  Command command;
  ToWire(start, command.mutable_start_training());
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kTrainingStarted));
  return FromWire(reply.training_started());
}

absl::StatusOr<SamplesPrepared> WorkerClient::PrepareSamples(int64_t most) {
  Command command;
  command.mutable_prepare_samples()->set_most(most);
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kPrepared));
  return FromWire(reply.prepared());
}

absl::StatusOr<Trained> WorkerClient::Train() {
  Command command;
  command.mutable_train();
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kTrained));
  return FromWire(reply.trained());
}

absl::StatusOr<TrainingSaved> WorkerClient::SaveTraining(bool exports) {
  Command command;
  command.mutable_save_training()->set_exports(exports);
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kSaved));
  return FromWire(reply.saved());
}

absl::StatusOr<TrainingSaved> WorkerClient::ExportTraining(const std::string& path) {
  Command command;
  command.mutable_export_training()->set_path(path);
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kSaved));
  return FromWire(reply.saved());
}

absl::StatusOr<TrainingEvaluated> WorkerClient::EvaluateTraining() {
  Command command;
  command.mutable_evaluate_training();
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kEvaluated));
  return FromWire(reply.evaluated());
}

absl::StatusOr<WorkerProgress> WorkerClient::Resume() {
  Command command;
  command.mutable_resume();
  ASSIGN_OR_RETURN(Reply reply, connection_->Call(std::move(command), Reply::kResumed));
  return WorkerProgress{.commands = reply.resumed().commands(), .failures = reply.resumed().failures()};
}

absl::Status WorkerClient::Shutdown() {
  Command command;
  command.mutable_shutdown();
  return connection_->Call(std::move(command), Reply::kEnded).status();
}

}  // namespace tessera::control
