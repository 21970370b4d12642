#include "tessera/image_client.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "client/sdk/attempts.h"
#include "client/sdk/http_transport.h"
#include "client/sdk/json_messages.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kUnaryTimeout = absl::Minutes(1);
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);
constexpr size_t kMaxKeyBytes = 255;

// Validates the options and returns the server's URL.
absl::StatusOr<ServerUrl> Check(const ImageClientOptions& options) {
  absl::StatusOr<ServerUrl> url = ParseServerUrl(absl::StrCat(options.tls ? "https://" : "http://", options.address));
  if (!url.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address is '", absl::Utf8SafeCEscape(options.address), "'; it must be HOST or HOST:PORT"));
  }
  if (!std::all_of(options.api_key.begin(), options.api_key.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError("the API key has invalid characters; valid characters are visible ASCII");
  }
  if (!options.tls && !options.root_certificates.empty()) {
    return absl::InvalidArgumentError("root certificates are given and tls is off; set tls, or leave them out");
  }
  if (!options.api_key.empty() && !options.tls && !options.key_in_clear && !url->IsLoopback()) {
    return absl::InvalidArgumentError(
        "the API key would be sent unencrypted; use tls, or set key_in_clear to allow it");
  }
  if (options.retries < 0 || options.retries > 1000) {
    return absl::InvalidArgumentError(absl::StrCat("retries is ", options.retries, "; valid values are 0 to 1000"));
  }
  return url;
}

// Returns the path of a job or an image, followed by `rest`.
std::string PathOf(const char* kind, const std::string& id, const char* rest = "") {
  return absl::StrCat("/v1/", kind, "/", PercentEncoded(id), rest);
}

class HttpImageClient final : public ImageClient {
 public:
  HttpImageClient(const ImageClientOptions& options, std::unique_ptr<HttpTransport> transport)
      : options_(options), transport_(std::move(transport)) {}

  absl::StatusOr<v1::Job> Generate(const v1::ImageRequest& image, const OnEvent& on_event,
                                   const CallOptions& options) override {
    ASSIGN_OR_RETURN(const HttpCall submission, SubmissionOf(image, options));
    Attempts attempts(options_, options, absl::InfiniteDuration());
    absl::StatusOr<v1::Job> job = Read<v1::Job>(submission, attempts);
    std::string id;
    if (job.ok()) {
      id = job->id();
      v1::JobEvent event;
      *event.mutable_accepted() = *std::move(job);
      on_event(event);
      attempts.Advance();
      job = Follow(id, attempts, /*with_files=*/true, on_event);
    }
    if (job.ok()) {
      if (job->state() == v1::JOB_STATE_CANCELLED) return absl::CancelledError("the job was cancelled");
      if (job->state() == v1::JOB_STATE_FAILED) return ErrorOf(job->error());
      return job;
    }
    const bool is_ours = options.idempotency_key.empty();
    const bool was_ended = job.status().code() == absl::StatusCode::kCancelled ||
                           job.status().code() == absl::StatusCode::kDeadlineExceeded;
    if (is_ours && was_ended) CancelSubmitted(submission, id);
    return job;
  }

  absl::StatusOr<v1::Job> Submit(const v1::ImageRequest& image, const CallOptions& options) override {
    ASSIGN_OR_RETURN(const HttpCall submission, SubmissionOf(image, options));
    return Read<v1::Job>(submission, UnaryAttempts(options));
  }

  absl::StatusOr<v1::Job> Get(const std::string& job, const CallOptions& options) override {
    return Read<v1::Job>({.target = PathOf("jobs", job)}, UnaryAttempts(options));
  }

  absl::StatusOr<v1::Job> Watch(const std::string& job, const OnEvent& on_event, const CallOptions& options) override {
    Attempts attempts(options_, options, absl::InfiniteDuration());
    return Follow(job, attempts, /*with_files=*/false, on_event);
  }

  absl::StatusOr<v1::Job> Cancel(const std::string& job, const CallOptions& options) override {
    return Read<v1::Job>({.method = "DELETE", .target = PathOf("jobs", job)}, UnaryAttempts(options));
  }

  absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request, const CallOptions& options) override {
    std::vector<std::string> query;
    if (request.limit() != 0) query.push_back(absl::StrCat("limit=", request.limit()));
    if (!request.after().empty()) query.push_back(absl::StrCat("after=", PercentEncoded(request.after())));
    if (request.state() != v1::JOB_STATE_UNSPECIFIED) {
      query.push_back(absl::StrCat("status=", JobStateWord(request.state())));
    }
    return Read<v1::ListJobsResponse>(
        {.target = absl::StrCat("/v1/jobs", query.empty() ? "" : "?", absl::StrJoin(query, "&"))},
        UnaryAttempts(options));
  }

  absl::StatusOr<v1::GetImageResponse> GetImage(const std::string& image, const CallOptions& options) override {
    ASSIGN_OR_RETURN(HttpAnswer answer, Call({.target = PathOf("images", image)}, UnaryAttempts(options)));
    v1::GetImageResponse response;
    response.set_output_format(std::string(absl::StripPrefix(answer.media_type, "image/")));
    response.set_file(std::move(answer.body));
    return response;
  }

  absl::StatusOr<std::string> UploadPicture(const std::string& file, const CallOptions& options) override {
    const std::string boundary = base::RandomId("form_");
    const auto part = [&boundary](const char* disposition) {
      return absl::StrCat("--", boundary, "\r\nContent-Disposition: form-data; ", disposition, "\r\n\r\n");
    };
    HttpCall call{.method = "POST", .target = "/v1/files"};
    call.media_type = absl::StrCat("multipart/form-data; boundary=", boundary);
    call.body = absl::StrCat(part("name=\"purpose\""), "vision\r\n", part("name=\"file\"; filename=\"picture\""), file,
                             "\r\n--", boundary, "--\r\n");
    ASSIGN_OR_RETURN(const HttpAnswer answer, Call(std::move(call), UnaryAttempts(options)));
    return FileIdOf(answer.body);
  }

  absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options) override {
    return Read<v1::ListModelsResponse>({.target = "/v1/models"}, UnaryAttempts(options));
  }

  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options) override {
    return Read<v1::ServerInfo>({.target = "/v1/server"}, UnaryAttempts(options));
  }

 private:
  Attempts UnaryAttempts(const CallOptions& options) const { return Attempts(options_, options, kUnaryTimeout); }

  static absl::StatusOr<HttpCall> SubmissionOf(const v1::ImageRequest& image, const CallOptions& options) {
    const std::string& key = options.idempotency_key;
    if (key.size() > kMaxKeyBytes || !std::all_of(key.begin(), key.end(), absl::ascii_isprint)) {
      return absl::InvalidArgumentError(absl::StrCat("idempotency_key is '", absl::Utf8SafeCEscape(key),
                                                     "'; valid values are 1 to ", kMaxKeyBytes,
                                                     " printable ASCII characters"));
    }
    ASSIGN_OR_RETURN(std::string body, ToJson(image));
    return HttpCall{.method = "POST",
                    .target = "/v1/jobs",
                    .body = std::move(body),
                    .idempotency_key = key.empty() ? base::RandomId("key_") : key};
  }

  static absl::Status ErrorOf(const v1::JobError& error) {
    const auto code = static_cast<absl::StatusCode>(error.code());
    return absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code, error.message());
  }

  absl::StatusOr<HttpAnswer> Call(HttpCall call, Attempts attempts) const {
    call.deadline = attempts.deadline();
    call.stop = attempts.stop();
    while (true) {
      absl::StatusOr<HttpAnswer> answer = transport_->Call(call);
      if (answer.ok()) return answer;
      RETURN_IF_ERROR(attempts.PauseAfter(answer.status()));
    }
  }

  template <typename Response>
  absl::StatusOr<Response> Read(const HttpCall& call, const Attempts& attempts) const {
    ASSIGN_OR_RETURN(const HttpAnswer answer, Call(call, attempts));
    Response response;
    RETURN_IF_ERROR(FromJson(answer.body, response));
    return response;
  }

  // `with_files`: image events include the image's bytes.
  absl::StatusOr<v1::Job> Follow(const std::string& job, Attempts& attempts, bool with_files,
                                 const OnEvent& on_event) const {
    std::set<int32_t> images;  // already reported
    while (true) {
      std::optional<v1::Job> ended;
      absl::Status refused;  // the error of an event, or the one to report next
      const auto deliver = [&](v1::JobEvent event) -> absl::Status {
        if (event.has_image() && images.contains(event.image().index())) return absl::OkStatus();
        if (event.has_image() && with_files) {
          ASSIGN_OR_RETURN(HttpAnswer file, Call({.target = PathOf("images", event.image().id())}, attempts));
          event.mutable_image()->set_file(std::move(file.body));
        }
        if (event.has_image()) images.insert(event.image().index());
        on_event(event);
        if (event.has_ended()) ended = event.ended();
        return absl::OkStatus();
      };
      const auto take = [&](const ServerEvent& sent) {
        attempts.Advance();
        absl::StatusOr<std::optional<v1::JobEvent>> event = EventOf(sent);
        refused = event.status();
        if (event.ok() && event->has_value()) refused = deliver(**std::move(event));
        return refused.ok() && !ended.has_value() && !attempts.stop().stop_requested();
      };
      absl::Status status = transport_->Follow(
          {.target = PathOf("jobs", job, "/events"), .deadline = attempts.deadline(), .stop = attempts.stop()}, take);
      if (ended.has_value()) return *std::move(ended);
      RETURN_IF_ERROR(refused);
      if (status.ok()) status = absl::UnavailableError("the stream of events ended before the job");
      RETURN_IF_ERROR(attempts.PauseAfter(status));
    }
  }

  // Tried once, because the caller no longer waits. If `job` is empty, its acceptance was never received; repeating the
  // submission then returns the job that it created.
  void CancelSubmitted(const HttpCall& submission, std::string job) const {
    ImageClientOptions once = options_;
    once.retries = 0;
    const Attempts attempts(once, {}, kFarewellTimeout);
    if (job.empty()) {
      const absl::StatusOr<v1::Job> submitted = Read<v1::Job>(submission, attempts);
      if (!submitted.ok()) return;
      job = submitted->id();
    }
    (void)Call({.method = "DELETE", .target = PathOf("jobs", job)}, attempts).status();
  }

  const ImageClientOptions options_;
  const std::unique_ptr<HttpTransport> transport_;
};

}  // namespace

}  // namespace tessera::client

absl::StatusOr<std::unique_ptr<tessera::ImageClient>> tessera::ImageClient::Create(const ImageClientOptions& options) {
  ASSIGN_OR_RETURN(const client::ServerUrl url, client::Check(options));
  ASSIGN_OR_RETURN(std::unique_ptr<client::HttpTransport> transport, client::HttpTransport::Create(url, options));
  return std::make_unique<client::HttpImageClient>(options, std::move(transport));
}
