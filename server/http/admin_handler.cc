#include "server/http/admin_handler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "server/calls/call_ids.h"
#include "server/http/api_routes.h"
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

AdminHandler::AdminHandler(ImageService& service, Options options) : service_(service), options_(std::move(options)) {}

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
  if (options_.record) options_.record(record);
  reply->Send(std::move(response));
}

bool AdminHandler::AnswersAtOnce(const HttpRequest& request) const {
  return request.Path() == "/livez" || request.Path() == "/readyz";
}

HttpResponse AdminHandler::Answer(const HttpRequest& request, CallRecord& record) {
  // A kubelet asks by the address of the pod, and Prometheus by whatever name it found.
  const bool any_host = request.Path() != "/probe";
  if (const auto failure = CheckHost(request, options_.hosts); failure && !(any_host && failure->status == 421)) {
    return Failure(PlainHttpError(failure->status, failure->message), record);
  }
  if (const auto failure = CheckOrigin(request, options_.hosts)) {
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
  if (path == "/probe") {
    if (const absl::Status allowed = CheckAccess(request, record); !allowed.ok()) return Health(allowed, record);
    return Health(service_.Probe(), record);
  }
  return {.status = 200,
          .headers = {{"Content-Type", kMetricsMediaType}},
          .body = options_.metrics ? options_.metrics() : service_.MetricsText()};
}

absl::Status AdminHandler::CheckAccess(const HttpRequest& request, CallRecord& record) const {
  switch (options_.access) {
    case AdminAccess::kEveryone:
      return absl::OkStatus();
    case AdminAccess::kNobody:
      return absl::PermissionDeniedError(
          "this call makes the devices work, and this listener is reached from beyond the server's machine: let "
          "admin_keys_file name a file with a line of `tessera keys NAME`, or listen.admin have a loopback address");
    case AdminAccess::kKeys:
      break;
  }
  if (request.CountHeaders("authorization") > 1) {
    return absl::UnauthenticatedError("there is more than one Authorization header");
  }
  const absl::StatusOr<Caller> caller = options_.gate->Authenticate(request.Header("authorization"));
  if (!caller.ok()) {
    return absl::UnauthenticatedError(
        absl::StrCat("this call makes the devices work and needs a key of admin_keys_file: ",
                     std::string(caller.status().message())));
  }
  record.tenant = caller->tenant;
  return absl::OkStatus();
}

HttpResponse AdminHandler::Refusal(int status, const std::string& reason, const std::string&) {
  HttpResponse response = ErrorResponse(PlainHttpError(status, reason));
  response.headers.push_back({"x-request-id", RequestIdFrom("")});
  return response;
}

}  // namespace tessera::server
