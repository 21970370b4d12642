#include "server/grpc/image_service_calls.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "base/time/steady_time.h"
#include "server/api/field_checks.h"
#include "server/api/job_event_pump.h"
#include "server/api/proto_values.h"
#include "server/api/service_error.h"
#include "server/calls/call_ids.h"
#include "server/calls/submission.h"
#include "tessera/v1/image_service.grpc.pb.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxErrorBytes = 2048;  // it is sent in a header
// Size of a message to the client, except for whole files that it requests. A client accepts 4 MiB by default.
constexpr size_t kMaxAnswerBytes = 1 << 20;
constexpr size_t kMaxWholeBytes = kMaxAnswerBytes - 4096;  // of a file; the rest of the message has other fields
constexpr size_t kPartBytes = 64 << 10;                    // of a larger file
constexpr uint64_t kMaxPending = 256 << 20;                // queued bytes; beyond this the call is ended

// Returns how many bytes of a file are read at once when its turn comes. A call whose client does not read holds this
// many.
size_t PartBytesOf(const base::ByteSource& file, bool whole) {
  return whole || file.size() <= kMaxWholeBytes ? std::numeric_limits<size_t>::max() : kPartBytes;
}

struct CallContext {
  ImageService& service;
  CallGate& gate;
  base::TaskPool& pool;
  const CallBeginner begin;
  const CallRecorder record;
};

std::optional<std::string> Metadata(const grpc::CallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  const std::string field = ErrorField(status);
  if (!field.empty()) context.AddTrailingMetadata("tessera-field", base::ReplaceInvalidUtf8(field.substr(0, 64)));
  context.AddTrailingMetadata("tessera-error-code", ErrorCodeForCallers(status));
  if (const std::optional<absl::Duration> wait = RetryAfter(status)) {
    context.AddTrailingMetadata("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(*wait)));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      base::ReplaceInvalidUtf8(status.message().substr(0, kMaxErrorBytes)));
}

// Returns the fields that are known when a call begins.
CallRecord BeginRecord(const CallContext& call, grpc::CallbackServerContext& context, const char* method) {
  CallRecord record;
  record.protocol = "grpc";
  record.route = absl::StrCat("/tessera.v1.ImageService/", method);
  record.peer = context.peer();
  record.request_id = RequestIdFrom(Metadata(context, "x-request-id").value_or(""));
  record.trace_parent = TraceParentFrom(Metadata(context, "traceparent").value_or(""));
  context.AddInitialMetadata("x-request-id", record.request_id);
  if (call.begin) call.begin(record);
  return record;
}

absl::StatusOr<Caller> Authenticate(CallGate& gate, const grpc::CallbackServerContext& context, CallRecord& record) {
  absl::StatusOr<Caller> caller = gate.Authenticate(Metadata(context, "authorization"));
  if (caller.ok()) {
    caller->request_id = record.request_id;
    caller->trace_parent = record.trace_parent;
    record.tenant = caller->tenant;
  }
  return caller;
}

void EndRecord(const CallContext& call, CallRecord& record, const absl::Status& status, absl::Duration begun) {
  if (!call.record) return;
  record.status = static_cast<int>(status.code());
  if (!status.ok()) {
    record.error_code = ErrorCode(status);
    if (record.error_code.empty()) record.error_code = absl::StatusCodeToString(status.code());
  }
  record.duration = base::SteadyNow() - begun;
  call.record(record);
}

std::optional<std::string> OptionalKey(const std::string& key) {
  return key.empty() ? std::nullopt : std::optional<std::string>(key);
}

// A call with one answer, computed on the pool. Deletes itself.
template <typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  using Answer = std::function<absl::StatusOr<Response>(const Caller&)>;

  // `call` must outlive this.
  UnaryCall(const CallContext& call, grpc::CallbackServerContext& context, const char* method, Response* response,
            Answer answer) {
    CallRecord begun_record = BeginRecord(call, context, method);
    absl::StatusOr<Caller> caller = Authenticate(call.gate, context, begun_record);
    call.pool.Post([this, &call, &context, record = std::move(begun_record), response, begun = base::SteadyNow(),
                    caller = std::move(caller), answer = std::move(answer)]() mutable {
      absl::Status status = caller.status();
      if (status.ok()) {
        absl::StatusOr<Response> result = answer(*caller);
        status = result.status();
        if (result.ok()) *response = *std::move(result);
        record.response_bytes = response->ByteSizeLong();
      }
      EndRecord(call, record, status, begun);
      Finish(ToGrpc(status, context));
    });
  }

  void OnDone() override { delete this; }
};

// A call that sends the file of an image, which is read in parts. Deletes itself.
class FileStream final : public grpc::ServerWriteReactor<v1::GetImageResponse> {
 public:
  // `call` must outlive this.
  FileStream(const CallContext& call, grpc::CallbackServerContext& context, const v1::GetImageRequest& request)
      : call_(call), context_(context), whole_(request.whole_file()), record_(BeginRecord(call, context, "GetImage")) {
    call_.pool.Post([this, id = request.id(), caller = Authenticate(call_.gate, context_, record_)] {
      if (!caller.ok()) return End(caller.status());
      absl::StatusOr<ImageFile> image = call_.service.OpenImage(*caller, id);
      if (!image.ok()) return End(image.status());
      image_ = *std::move(image);
      WritePart();
    });
  }

  void OnWriteDone(bool ok) override {
    // Reads and records run on the pool, because they may wait for the disk.
    call_.pool.Post([this, ok] {
      if (!ok) return End(absl::CancelledError("the call was cancelled"));
      written_ < image_.bytes->size() ? WritePart() : End(absl::OkStatus());
    });
  }

  void OnDone() override { delete this; }

 private:
  void WritePart() {
    absl::StatusOr<std::string> part = image_.bytes->Read(written_, PartBytesOf(*image_.bytes, whole_));
    if (!part.ok()) return End(part.status());
    part_.set_output_format(OutputFormatName(image_.format));
    part_.set_file(*std::move(part));
    written_ += part_.file().size();
    record_.response_bytes += part_.ByteSizeLong();
    StartWrite(&part_);
  }

  void End(const absl::Status& status) {
    EndRecord(call_, record_, status, begun_);
    Finish(ToGrpc(status, context_));
  }

  const CallContext& call_;
  grpc::CallbackServerContext& context_;
  const absl::Duration begun_ = base::SteadyNow();
  const bool whole_;
  CallRecord record_;
  ImageFile image_;
  uint64_t written_ = 0;
  v1::GetImageResponse part_;
};

// A call that sends the events of a job. gRPC keeps it alive until OnDone, and so does any pending work on it. The
// call's context is destroyed after OnDone, which comes only after `finished_` is set.
class EventStream final : public grpc::ServerWriteReactor<v1::JobEvent>,
                          public std::enable_shared_from_this<EventStream> {
 public:
  // The job to watch and the first event to send.
  struct Subject {
    std::string job;
    std::optional<v1::JobEvent> first;
    bool cancels_job = false;  // when the client disconnects
    bool with_files = false;
    bool whole_files = false;  // send each file in one message
    bool fails_with_job = false;
  };
  using Choose = std::function<absl::StatusOr<Subject>(const Caller&)>;

  // `call` must outlive the stream.
  static EventStream* Start(const CallContext& call, grpc::CallbackServerContext& context, const char* method,
                            Choose choose) {
    auto stream = std::make_shared<EventStream>(call, context);
    stream->record_ = BeginRecord(call, context, method);
    stream->alive_ = stream;
    absl::StatusOr<Caller> caller = Authenticate(call.gate, context, stream->record_);
    call.pool.Post([stream, caller = std::move(caller), choose = std::move(choose)] {
      if (!caller.ok()) return stream->End(caller.status());
      {
        const std::lock_guard lock(stream->mutex_);
        stream->caller_ = *caller;
      }
      stream->Begin(choose);
    });
    return stream.get();
  }

  EventStream(const CallContext& call, grpc::CallbackServerContext& context) : call_(call), context_(context) {}

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    const std::lock_guard lock(mutex_);
    pending_ -= std::exchange(writing_, 0);
    if (!ok) Discard();
    Continue();
  }

  void OnCancel() override {
    const auto self = shared_from_this();
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    call_.pool.Post([self] { self->Abandon(); });
  }

  void OnDone() override { const std::shared_ptr<EventStream> last = std::move(alive_); }

 private:
  void Begin(const Choose& choose) {
    absl::StatusOr<Subject> subject = choose(caller_);
    if (!subject.ok()) return End(subject.status());
    bool too_late;
    {
      const std::lock_guard lock(mutex_);
      subject_ = *std::move(subject);
      too_late = ended_;
      if (!too_late && subject_.first.has_value()) Add(*std::move(subject_.first), base::BytesOf(""));
      Continue();
    }
    if (too_late) {
      // The client disconnected while its job was being submitted.
      return CancelUnlessKept();
    }
    absl::StatusOr<std::shared_ptr<JobEventPump>> pump =
        JobEventPump::Start(call_.service, call_.pool, caller_, subject_.job, WatchedEvents::kAll,
                            [self = shared_from_this()](const JobEvent& event) { self->OnEvent(event); });
    if (!pump.ok()) return End(pump.status());
    bool cancelled;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) pump_ = *std::move(pump);
      cancelled = cancelled_;
    }
    if (cancelled) Abandon();
  }

  // A job without an idempotency key cannot be picked up again by its client.
  void CancelUnlessKept() {
    if (subject_.cancels_job) (void)call_.service.Cancel(caller_, subject_.job).status();
  }

  void OnEvent(const JobEvent& event) {
    if (const auto* released = std::get_if<ReleasedEvent>(&event)) {
      End(released->reason);
      return CancelUnlessKept();
    }
    v1::JobEvent message = ToProto(event);
    base::SharedBytes file = base::BytesOf("");
    if (message.has_preview()) file = base::BytesOf(std::move(*message.mutable_preview()->mutable_file()));
    if (message.has_image() && subject_.with_files) {
      absl::StatusOr<ImageFile> image = call_.service.OpenImage(caller_, message.image().id());
      if (!image.ok()) return End(image.status());
      file = std::move(image->bytes);
    }
    bool overfull;
    {
      const std::lock_guard lock(mutex_);
      if (ended_ || (message.has_preview() && pending_ > kEnoughPending)) return;
      Add(std::move(message), std::move(file));
      Continue();
      overfull = pending_ > kMaxPending;
    }
    if (overfull) return Abandon();
    const auto* ended = std::get_if<EndedEvent>(&event);
    if (ended == nullptr) return;
    if (subject_.fails_with_job && ended->job.state == JobState::kFailed)
      return End(ErrorOfFailedJob(ended->job.error));
    if (subject_.fails_with_job && ended->job.state == JobState::kCancelled) {
      return End(absl::CancelledError("the job was cancelled"));
    }
    End(absl::OkStatus());
  }

  // The client has disconnected, or does not read what it requested.
  void Abandon() {
    std::shared_ptr<JobEventPump> pump;
    std::string cancel;
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      pump = pump_;
      if (subject_.cancels_job) cancel = subject_.job;
      Discard();
    }
    if (pump != nullptr) pump->Stop();
    if (!cancel.empty()) (void)call_.service.Cancel(caller_, cancel).status();
    End(absl::CancelledError("the call was cancelled"));
  }

  void End(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    pump_ = nullptr;
    end_ = ToGrpc(status, context_);
    record_.job = subject_.job;
    EndRecord(call_, record_, status, begun_);
    Continue();
  }

  // The methods below require the lock, except OnPart.

  // An event with its file, which becomes part of the event unless it must be sent in parts before it.
  struct Waiting {
    v1::JobEvent event;
    base::SharedBytes file;
    uint64_t sent = 0;     // bytes of the file
    uint64_t pending = 0;  // bytes of both that count as pending

    bool has_file() const { return sent < file->size(); }
  };

  void Add(v1::JobEvent event, base::SharedBytes file) {
    const uint64_t bytes = event.ByteSizeLong() + file->size();
    pending_ += bytes;
    record_.response_bytes += bytes;
    waiting_.push_back({.event = std::move(event), .file = std::move(file), .pending = bytes});
  }

  // Drops everything but the message that is being written.
  void Discard() {
    waiting_.clear();
    pending_ = writing_;
  }

  void Continue() {
    if (writing_ > 0 || reading_ || finished_) return;
    if (!waiting_.empty() && !cancelled_) {
      if (waiting_.front().has_file()) return ReadPart();
      Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      message_ = std::move(next.event);
      Write(next.pending);
    } else if (ended_) {
      finished_ = true;
      Finish(end_);
    }
  }

  void Write(uint64_t pending) {
    writing_ = pending;
    StartWrite(&message_);
  }

  // Reads a part of the first waiting event's file, on the pool because it may wait for the disk.
  void ReadPart() {
    reading_ = true;
    const Waiting& next = waiting_.front();
    call_.pool.Post(
        [self = shared_from_this(), file = next.file, sent = next.sent,
         most = PartBytesOf(*next.file, subject_.whole_files)] { self->OnPart(file, file->Read(sent, most)); });
  }

  // Must be called without the lock.
  void OnPart(const base::SharedBytes& file, absl::StatusOr<std::string> part) {
    if (!part.ok()) End(part.status());
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (!part.ok()) {
      Discard();
      if (end_.ok()) end_ = ToGrpc(part.status(), context_);  // the job itself had ended without an error
    } else if (!waiting_.empty() && waiting_.front().file == file) {
      SendPart(*std::move(part));
    }
    Continue();
  }

  // Sends a part, or puts a file that is a single part into its event.
  void SendPart(std::string part) {
    Waiting& next = waiting_.front();
    const bool whole = part.size() == next.file->size();
    next.sent += part.size();
    if (!whole) {
      const uint64_t bytes = part.size();
      next.pending -= bytes;
      *message_.mutable_file_part()->mutable_data() = std::move(part);
      return Write(bytes);
    }
    if (next.event.has_preview()) next.event.mutable_preview()->set_file(std::move(part));
    if (next.event.has_image()) next.event.mutable_image()->set_file(std::move(part));
  }

  const CallContext& call_;
  grpc::CallbackServerContext& context_;
  const absl::Duration begun_ = base::SteadyNow();
  std::shared_ptr<EventStream> alive_;  // until OnDone
  Caller caller_;                       // set before Begin
  Subject subject_;                     // set before the first event

  std::mutex mutex_;
  std::shared_ptr<JobEventPump> pump_;
  std::deque<Waiting> waiting_;
  v1::JobEvent message_;  // the message being written
  uint64_t writing_ = 0;  // size of message_; 0: nothing is being written
  uint64_t pending_ = 0;  // bytes of message_ and of waiting events
  bool reading_ = false;  // a part for the first waiting event
  bool cancelled_ = false, ended_ = false, finished_ = false;
  CallRecord record_;
  grpc::Status end_;
};

class ImageServiceCalls final : public v1::ImageService::CallbackService {
 public:
  explicit ImageServiceCalls(const CallContext& call) : call_(call) {}

  grpc::ServerWriteReactor<v1::JobEvent>* Generate(grpc::CallbackServerContext* context,
                                                   const v1::GenerateRequest* request) override {
    return EventStream::Start(call_, *context, "Generate", [this, request = *request](const Caller& caller) {
      return BeginGenerating(caller, request);
    });
  }

  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext* context,
                                                   const v1::WatchJobRequest* request) override {
    return EventStream::Start(call_, *context, "WatchJob",
                              [id = request->id()](const Caller&) -> absl::StatusOr<EventStream::Subject> {
                                return EventStream::Subject{.job = id, .first = std::nullopt};
                              });
  }

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
                                   v1::Job* response) override {
    return Answer<v1::Job>(
        context, "Submit", response, [this, request](const Caller& caller) -> absl::StatusOr<v1::Job> {
          ASSIGN_OR_RETURN(Submitted submitted,
                           SubmitImageRequest(call_.service, call_.gate, caller, FromProto(request->image()),
                                              OptionalKey(request->idempotency_key())));
          return ToProto(submitted.job);
        });
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::Job* response) override {
    return Answer<v1::Job>(context, "GetJob", response, [this, request](const Caller& caller) {
      return Message(call_.service.Get(caller, request->id()));
    });
  }

  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                      v1::Job* response) override {
    return Answer<v1::Job>(context, "CancelJob", response, [this, request](const Caller& caller) {
      return Message(call_.service.Cancel(caller, request->id()));
    });
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return Answer<v1::ListJobsResponse>(context, "ListJobs", response,
                                        [this, request](const Caller& caller) { return ListJobs(caller, *request); });
  }

  grpc::ServerWriteReactor<v1::GetImageResponse>* GetImage(grpc::CallbackServerContext* context,
                                                           const v1::GetImageRequest* request) override {
    return new FileStream(call_, *context, *request);
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    return Answer<v1::ListModelsResponse>(context, "ListModels", response,
                                          [this](const Caller&) -> absl::StatusOr<v1::ListModelsResponse> {
                                            v1::ListModelsResponse message;
                                            for (const ServedModel& model : call_.service.ListModels()) {
                                              if (!model.unreadable.ok()) continue;
                                              *message.add_models() = ToProto(model);
                                              for (const ServedAdapter& adapter : model.adapters) {
                                                *message.add_models() = ToProto(model, adapter);
                                              }
                                            }
                                            return message;
                                          });
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
                                          v1::ServerInfo* response) override {
    return Answer<v1::ServerInfo>(
        context, "GetServerInfo", response,
        [this](const Caller&) -> absl::StatusOr<v1::ServerInfo> { return ToProto(call_.service.Info()); });
  }

 private:
  template <typename Response>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const char* method, Response* response,
                                   typename UnaryCall<Response>::Answer answer) {
    return new UnaryCall<Response>(call_, *context, method, response, std::move(answer));
  }

  static absl::StatusOr<v1::Job> Message(const absl::StatusOr<Job>& job) {
    if (!job.ok()) return job.status();
    return ToProto(*job);
  }

  // Returns as many of the jobs as fit into one message, at least one.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const Caller& caller, const v1::ListJobsRequest& request) {
    ASSIGN_OR_RETURN(ListOptions options, FromProto(request));
    while (true) {
      ASSIGN_OR_RETURN(const JobPage page, call_.service.List(caller, options));
      v1::ListJobsResponse message;
      for (const Job& job : page.jobs) *message.add_jobs() = ToProto(job);
      message.set_next(page.next);
      if (message.ByteSizeLong() <= kMaxAnswerBytes || options.limit == 1) return message;
      options.limit = std::max(options.limit / 2, 1);
    }
  }

  absl::StatusOr<EventStream::Subject> BeginGenerating(const Caller& caller, const v1::GenerateRequest& request) {
    const std::optional<std::string> key = OptionalKey(request.idempotency_key());
    absl::StatusOr<Submitted> submitted =
        SubmitImageRequest(call_.service, call_.gate, caller, FromProto(request.image()), key);
    if (!submitted.ok()) return submitted.status();
    EventStream::Subject subject = {.job = submitted->job.id,
                                    .first = v1::JobEvent(),
                                    .cancels_job = !key.has_value(),
                                    .with_files = !request.omit_image_bytes(),
                                    .whole_files = request.whole_files(),
                                    .fails_with_job = true};
    *subject.first->mutable_accepted() = ToProto(submitted->job);
    return subject;
  }

  const CallContext call_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeImageServiceCalls(ImageService& service, CallGate& gate, base::TaskPool& pool,
                                                     CallBeginner begin, CallRecorder record) {
  return std::make_unique<ImageServiceCalls>(CallContext{service, gate, pool, std::move(begin), std::move(record)});
}

}  // namespace tessera::server
