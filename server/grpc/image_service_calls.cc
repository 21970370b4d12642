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
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "server/api/job_event_pump.h"
#include "server/api/proto_values.h"
#include "server/api/service_error.h"
#include "server/api/submission.h"
#include "server/calls/call_ids.h"
#include "tessera/v1/image_service.grpc.pb.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxErrorBytes = 2048;  // it travels in a header
// Of a message to the client, but for whole files that it asks for. A client takes 4 MiB unless it is made to take
// more.
constexpr size_t kMaxAnswerBytes = 1 << 20;
constexpr size_t kMaxWholeBytes = kMaxAnswerBytes - 4096;  // of a file: its message has other fields, too
constexpr size_t kPartBytes = 64 << 10;                    // of a larger one
constexpr uint64_t kMaxPending = 256 << 20;                // bytes that wait for a client before its call is ended

// What of a file is read at once, when its turn comes: a call whose client takes nothing holds so much.
size_t PartBytesOf(const base::ByteSource& file, bool whole) {
  return whole || file.size() <= kMaxWholeBytes ? std::numeric_limits<size_t>::max() : kPartBytes;
}

struct CallContext {
  ImageService& service;
  CallGate& gate;
  base::TaskPool& pool;
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

// What is known of a call when it begins.
CallRecord BeginRecord(grpc::CallbackServerContext& context, const char* method) {
  CallRecord record;
  record.protocol = "grpc";
  record.route = absl::StrCat("/tessera.v1.ImageService/", method);
  record.peer = context.peer();
  record.request_id = RequestIdFrom(Metadata(context, "x-request-id").value_or(""));
  record.trace_parent = TraceParentFrom(Metadata(context, "traceparent").value_or(""));
  context.AddInitialMetadata("x-request-id", record.request_id);
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
    CallRecord begun_record = BeginRecord(context, method);
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

// A call that is answered with the file of an image, which is read part by part. Deletes itself.
class FileStream final : public grpc::ServerWriteReactor<v1::GetImageResponse> {
 public:
  // `call` must outlive this.
  FileStream(const CallContext& call, grpc::CallbackServerContext& context, const v1::GetImageRequest& request)
      : call_(call), context_(context), whole_(request.whole_file()), record_(BeginRecord(context, "GetImage")) {
    call_.pool.Post([this, id = request.id(), caller = Authenticate(call_.gate, context_, record_)] {
      if (!caller.ok()) return End(caller.status());
      absl::StatusOr<ImageFile> image = call_.service.OpenImage(*caller, id);
      if (!image.ok()) return End(image.status());
      image_ = *std::move(image);
      WritePart();
    });
  }

  void OnWriteDone(bool ok) override {
    // What reads or records may wait for the disk.
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

// A call that is answered by the events of a job. Kept alive by gRPC, until OnDone, and by whoever has work to do with
// it; the call's context is gone after OnDone, which comes only when `finished_` is set.
class EventStream final : public grpc::ServerWriteReactor<v1::JobEvent>,
                          public std::enable_shared_from_this<EventStream> {
 public:
  // The job to watch, and what is to be told first.
  struct Subject {
    std::string job;
    std::optional<v1::JobEvent> first;
    bool cancels_job = false;  // when the client goes away
    bool with_files = false;
    bool whole_files = false;  // in one message each
    bool fails_with_job = false;
  };
  using Choose = std::function<absl::StatusOr<Subject>(const Caller&)>;

  // `call` must outlive the stream.
  static EventStream* Start(const CallContext& call, grpc::CallbackServerContext& context, const char* method,
                            Choose choose) {
    auto stream = std::make_shared<EventStream>(call, context);
    stream->record_ = BeginRecord(context, method);
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
      // The client went away while its job was on its way into the queue.
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

  // Without a key nobody can come back for it.
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

  // The client is gone, or will not take what it asked for.
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

  // The rest is done under the lock.

  // An event with the file that belongs to it, which goes into it unless it has to be sent in parts before.
  struct Waiting {
    v1::JobEvent event;
    base::SharedBytes file;
    uint64_t sent = 0;     // bytes of the file
    uint64_t pending = 0;  // bytes of both that are counted as such

    bool has_file() const { return sent < file->size(); }
  };

  void Add(v1::JobEvent event, base::SharedBytes file) {
    const uint64_t bytes = event.ByteSizeLong() + file->size();
    pending_ += bytes;
    record_.response_bytes += bytes;
    waiting_.push_back({.event = std::move(event), .file = std::move(file), .pending = bytes});
  }

  // All but what is being written.
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

  // Of the file of the first event that waits, on the pool because it may wait for the disk.
  void ReadPart() {
    reading_ = true;
    const Waiting& next = waiting_.front();
    call_.pool.Post(
        [self = shared_from_this(), file = next.file, sent = next.sent,
         most = PartBytesOf(*next.file, subject_.whole_files)] { self->OnPart(file, file->Read(sent, most)); });
  }

  // Not under the lock.
  void OnPart(const base::SharedBytes& file, absl::StatusOr<std::string> part) {
    if (!part.ok()) End(part.status());
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (!part.ok()) {
      Discard();
      if (end_.ok()) end_ = ToGrpc(part.status(), context_);  // the job had ended well before
    } else if (!waiting_.empty() && waiting_.front().file == file) {
      SendPart(*std::move(part));
    }
    Continue();
  }

  // A file that is one part goes into its event.
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
  Subject subject_;                     // set before there are events

  std::mutex mutex_;
  std::shared_ptr<JobEventPump> pump_;
  std::deque<Waiting> waiting_;
  v1::JobEvent message_;  // that is being written
  uint64_t writing_ = 0;  // bytes of it; 0: none is
  uint64_t pending_ = 0;  // bytes of it and of what waits
  bool reading_ = false;  // a part of what waits first
  bool cancelled_ = false, ended_ = false, finished_ = false;
  CallRecord record_;
  grpc::Status end_;
};

class Calls final : public v1::ImageService::CallbackService {
 public:
  explicit Calls(const CallContext& call) : call_(call) {}

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

  // As many of the jobs as one message holds, at least one.
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
                                                     CallRecorder record) {
  return std::make_unique<Calls>(CallContext{service, gate, pool, std::move(record)});
}

}  // namespace tessera::server
