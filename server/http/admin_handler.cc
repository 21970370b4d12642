#include "server/http/admin_handler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/calls/call_ids.h"
#include "server/http/error_response.h"

namespace tessera::server {
namespace {

HttpResponse Failure(const HttpError& error, CallRecord& record) {
  record.error_code = error.code;
  return ErrorResponse(error);
}

HttpResponse Health(const absl::Status& status, CallRecord& record) {
  if (!status.ok()) return Failure(HttpErrorOf(status), record);
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = R"({"status":"ok"})"};
}

}  // namespace

AdminHandler::AdminHandler(ImageService& service, HostRules hosts, std::function<std::string()> more_metrics,
                           CallRecorder record)
    : service_(service), hosts_(std::move(hosts)), more_metrics_(std::move(more_metrics)), record_(std::move(record)) {}

void AdminHandler::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  const absl::Duration begun = base::SteadyNow();
  CallRecord record;
  record.protocol = "admin";
  record.request_id = RequestIdFrom(request.Header("x-request-id").value_or(""));
  record.method = request.method.substr(0, 16);
  record.peer = request.peer;
  record.request_bytes = request.body.size();
  HttpResponse response = Answer(request, record);
  response.headers.push_back({"x-request-id", record.request_id});
  record.status = response.status;
  record.response_bytes = response.body.size();
  record.duration = base::SteadyNow() - begun;
  if (record_) record_(record);
  reply->Send(std::move(response));
}

bool AdminHandler::AnswersAtOnce(const HttpRequest& request) const {
  return request.Path() == "/livez" || request.Path() == "/readyz";
}

HttpResponse AdminHandler::Answer(const HttpRequest& request, CallRecord& record) {
  // A kubelet asks by the address of the pod, and Prometheus by whatever name it found.
  const bool any_host = request.Path() != "/probe";
  if (const auto failure = CheckHost(request, hosts_); failure && !(any_host && failure->status == 421)) {
    return Failure(PlainHttpError(failure->status, failure->message), record);
  }
  if (const auto failure = CheckOrigin(request, hosts_)) {
    return Failure(PlainHttpError(failure->status, failure->message), record);
  }
  const std::string path(request.Path());
  if (path != "/livez" && path != "/readyz" && path != "/metrics" && path != "/probe") {
    return Failure(PlainHttpError(404, "there is no such path; valid values are /livez, /readyz, /metrics and /probe"),
                   record);
  }
  record.route = path;
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse response = Failure(PlainHttpError(405, "this path takes GET"), record);
    response.headers.push_back({"Allow", "GET"});
    return response;
  }
  if (path == "/livez") return Health(absl::OkStatus(), record);
  if (path == "/readyz") return Health(service_.Ready(), record);
  if (path == "/probe") return Health(service_.Probe(), record);
  return {.status = 200,
          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          .body = absl::StrCat(service_.MetricsText(), more_metrics_ ? more_metrics_() : "")};
}

HttpResponse AdminHandler::Refusal(int status, const std::string& reason, const std::string&) {
  HttpResponse response = ErrorResponse(PlainHttpError(status, reason));
  response.headers.push_back({"x-request-id", RequestIdFrom("")});
  return response;
}

}  // namespace tessera::server
