#include "server/http/admin_handler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/error_response.h"

namespace tessera {
namespace {

HttpResponse Health(const absl::Status& status) {
  if (!status.ok()) return ErrorResponse(HttpErrorOf(status));
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = R"({"status":"ok"})"};
}

}  // namespace

AdminHandler::AdminHandler(ImageService& service, HostRules hosts, std::function<std::string()> more_metrics)
    : service_(service), hosts_(std::move(hosts)), more_metrics_(std::move(more_metrics)) {}

void AdminHandler::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) { reply->Send(Answer(request)); }

HttpResponse AdminHandler::Answer(const HttpRequest& request) {
  if (const auto failure = CheckHost(request, hosts_)) {
    return ErrorResponse(PlainHttpError(failure->status, failure->message));
  }
  if (const auto failure = CheckOrigin(request, hosts_)) {
    return ErrorResponse(PlainHttpError(failure->status, failure->message));
  }
  const absl::string_view path = request.Path();
  if (path != "/livez" && path != "/readyz" && path != "/metrics" && path != "/probe") {
    return ErrorResponse(PlainHttpError(404, "there is no such path; legal are /livez, /readyz, /metrics and /probe"));
  }
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse response = ErrorResponse(PlainHttpError(405, "this path takes GET"));
    response.headers.push_back({"Allow", "GET"});
    return response;
  }
  if (path == "/livez") return Health(absl::OkStatus());
  if (path == "/readyz") return Health(service_.Ready());
  if (path == "/probe") return Health(service_.Probe());
  return {.status = 200,
          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          .body = absl::StrCat(service_.MetricsText(), more_metrics_ ? more_metrics_() : "")};
}

HttpResponse AdminHandler::Refusal(int status, const std::string& reason) {
  return ErrorResponse(PlainHttpError(status, reason));
}

}  // namespace tessera
