#include "tessera/image_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "client/sdk/attempts.h"
#include "tessera/v1/image_service.grpc.pb.h"

namespace tessera {
namespace {

constexpr int kMaxAnswerBytes = 256 << 20;
constexpr absl::Duration kUnaryTimeout = absl::Minutes(1);
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

using Stub = v1::ImageService::StubInterface;
using EventReader = grpc::ClientReaderInterface<v1::JobEvent>;
using OpenStream = absl::FunctionRef<std::unique_ptr<EventReader>(grpc::ClientContext&)>;

bool IsOnThisMachine(const std::string& address) {
  for (const char* prefix : {"localhost:", "127.", "[::1]:", "unix:"}) {
    if (absl::StartsWith(address, prefix)) return true;
  }
  return false;
}

absl::Status Check(const ImageClientOptions& options) {
  if (options.address.empty()) return absl::InvalidArgumentError("the address is empty; legal is HOST:PORT");
  if (!std::all_of(options.api_key.begin(), options.api_key.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError("the API key has characters that no key has; legal are visible ASCII ones");
  }
  if (!options.tls && !options.root_certificates.empty()) {
    return absl::InvalidArgumentError("root certificates are given and tls is off; legal are both or neither");
  }
  if (!options.api_key.empty() && !options.tls && !options.key_in_clear && !IsOnThisMachine(options.address)) {
    return absl::InvalidArgumentError(
        "the API key would travel unencrypted; legal is tls, or key_in_clear where others may read it");
  }
  if (options.retries < 0 || options.retries > 1000) {
    return absl::InvalidArgumentError(absl::StrCat("retries is ", options.retries, "; legal is 0 to 1000"));
  }
  return absl::OkStatus();
}

// A stream of events ended, or was ended, before the job.
bool IsLost(const absl::Status& ended) {
  // A server that shuts down cancels its calls.
  return ended.ok() || ended.code() == absl::StatusCode::kCancelled;
}

class GrpcImageClient final : public ImageClient {
 public:
  explicit GrpcImageClient(const ImageClientOptions& options) : options_(options) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
    arguments.SetUserAgentPrefix("tessera-client");
    // Attempts and pauses are ours.
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    // A server that is gone without a word is noticed while nothing happens.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    const auto credentials = options.tls ? grpc::SslCredentials({.pem_root_certs = options.root_certificates})
                                         : grpc::InsecureChannelCredentials();
    stub_ = v1::ImageService::NewStub(grpc::CreateCustomChannel(options.address, credentials, arguments));
  }

  absl::StatusOr<v1::Job> Generate(const v1::ImageRequest& image, const OnEvent& on_event,
                                   const CallOptions& options) override {
    v1::GenerateRequest request;
    *request.mutable_image() = image;
    request.set_idempotency_key(KeyOf(options));
    Attempts attempts(options_, options, absl::InfiniteDuration());
    std::string job;
    absl::StatusOr<v1::Job> ended = Follow(
        attempts, [&](grpc::ClientContext& context) { return stub_->Generate(&context, request); },
        [&](const v1::JobEvent& event) {
          if (event.has_accepted() && !std::exchange(job, event.accepted().id()).empty()) return;
          on_event(event);
        });
    if (ended.ok()) {
      if (ended->state() == v1::JOB_STATE_CANCELLED) return absl::CancelledError("the job was cancelled");
      if (ended->state() == v1::JOB_STATE_FAILED) return ErrorOf(ended->error());
      return ended;
    }
    const bool is_ours = options.idempotency_key.empty();
    const bool was_ended = ended.status().code() == absl::StatusCode::kCancelled ||
                           ended.status().code() == absl::StatusCode::kDeadlineExceeded;
    if (is_ours && was_ended) CancelSubmitted(request, job);
    return ended;
  }

  absl::StatusOr<v1::Job> Submit(const v1::ImageRequest& image, const CallOptions& options) override {
    v1::SubmitRequest request;
    *request.mutable_image() = image;
    request.set_idempotency_key(KeyOf(options));
    return Call(&Stub::Submit, request, UnaryAttempts(options));
  }

  absl::StatusOr<v1::Job> Get(const std::string& job, const CallOptions& options) override {
    v1::GetJobRequest request;
    request.set_id(job);
    return Call(&Stub::GetJob, request, UnaryAttempts(options));
  }

  absl::StatusOr<v1::Job> Watch(const std::string& job, const OnEvent& on_event, const CallOptions& options) override {
    v1::WatchJobRequest request;
    request.set_id(job);
    Attempts attempts(options_, options, absl::InfiniteDuration());
    return Follow(
        attempts, [&](grpc::ClientContext& context) { return stub_->WatchJob(&context, request); }, on_event);
  }

  absl::StatusOr<v1::Job> Cancel(const std::string& job, const CallOptions& options) override {
    v1::CancelJobRequest request;
    request.set_id(job);
    return Call(&Stub::CancelJob, request, UnaryAttempts(options));
  }

  absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request, const CallOptions& options) override {
    return Call(&Stub::ListJobs, request, UnaryAttempts(options));
  }

  absl::StatusOr<v1::GetImageResponse> GetImage(const std::string& image, const CallOptions& options) override {
    v1::GetImageRequest request;
    request.set_id(image);
    return Call(&Stub::GetImage, request, UnaryAttempts(options));
  }

  absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options) override {
    return Call(&Stub::ListModels, v1::ListModelsRequest(), UnaryAttempts(options));
  }

  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options) override {
    return Call(&Stub::GetServerInfo, v1::GetServerInfoRequest(), UnaryAttempts(options));
  }

 private:
  static std::string KeyOf(const CallOptions& options) {
    return options.idempotency_key.empty() ? RandomId("key_") : options.idempotency_key;
  }

  Attempts UnaryAttempts(const CallOptions& options) const { return Attempts(options_, options, kUnaryTimeout); }

  static absl::Status ErrorOf(const v1::JobError& error) {
    const auto code = static_cast<absl::StatusCode>(error.code());
    return absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code, error.message());
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, Attempts attempts) const {
    while (true) {
      grpc::ClientContext context;
      Response response;
      absl::Status status = attempts.Run(context, [&] { return ((*stub_).*method)(&context, request, &response); });
      if (status.ok()) return response;
      status = attempts.PauseAfter(status);
      if (!status.ok()) return status;
    }
  }

  static absl::StatusOr<v1::Job> Follow(Attempts& attempts, OpenStream open, const OnEvent& on_event) {
    std::set<int32_t> images;  // that were told
    while (true) {
      grpc::ClientContext context;
      std::optional<v1::Job> ended;
      absl::Status status = attempts.Run(context, [&] {
        const std::unique_ptr<EventReader> reader = open(context);
        v1::JobEvent event;
        while (reader->Read(&event)) {
          attempts.Advance();
          if (event.has_image() && !images.insert(event.image().index()).second) continue;
          on_event(event);
          if (event.has_ended()) ended = event.ended();
        }
        return reader->Finish();
      });
      if (ended.has_value()) return *std::move(ended);
      if (IsLost(status)) status = absl::UnavailableError("the stream of events ended before the job");
      status = attempts.PauseAfter(status);
      if (!status.ok()) return status;
    }
  }

  // Tried once, for a caller that no longer waits. `job` is empty where its acceptance was not heard of; then the same
  // submission tells which job it made.
  void CancelSubmitted(const v1::GenerateRequest& request, const std::string& job) const {
    ImageClientOptions once = options_;
    once.retries = 0;
    const Attempts attempts(once, {}, kFarewellTimeout);
    v1::CancelJobRequest cancel;
    cancel.set_id(job);
    if (job.empty()) {
      v1::SubmitRequest submit;
      *submit.mutable_image() = request.image();
      submit.set_idempotency_key(request.idempotency_key());
      const absl::StatusOr<v1::Job> submitted = Call(&Stub::Submit, submit, attempts);
      if (!submitted.ok()) return;
      cancel.set_id(submitted->id());
    }
    (void)Call(&Stub::CancelJob, cancel, attempts).status();
  }

  const ImageClientOptions options_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ImageClient>> ImageClient::Create(const ImageClientOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  return std::make_unique<GrpcImageClient>(options);
}

}  // namespace tessera
