#include "server/http/admin_handler.h"

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json/plain_json.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "server/api/field_checks.h"
#include "server/calls/call_ids.h"
#include "server/http/api_routes.h"
#include "server/http/error_response.h"
#include "server/http/flat_json.h"
#include "server/http/usage_json.h"

namespace tessera::server {
namespace {

HttpResponse Failure(const HttpError& error, CallRecord& record) {
  record.error_code = error.code;
  return ErrorResponse(error);
}

constexpr char kLoadAdapter[] = "/v1/load_lora_adapter";
constexpr char kUnloadAdapter[] = "/v1/unload_lora_adapter";
constexpr char kUsage[] = "/v1/usage";

// The body is {"lora_name": NAME}.
absl::StatusOr<std::string> ReadAdapterName(absl::string_view body) {
  ASSIGN_OR_RETURN(const std::vector<FlatJsonMember> members, ReadFlatJson(body));
  std::optional<std::string> name;
  for (const FlatJsonMember& member : members) {
    if (member.name == "lora_path") {
      return FieldError(member.name,
                        " is not valid: adapters are loaded from the folder adapter_folder, by their "
                        "lora_name only; leave it out");
    }
    if (member.name != "lora_name") {
      const absl::Status unknown = CheckName("field", member.name, {"lora_name"});
      return FieldError(QuotedValue(member.name), absl::StrCat(": ", unknown.message()));
    }
    const JsonScalar* scalar = std::get_if<JsonScalar>(&member.value);
    const std::string* text = scalar == nullptr ? nullptr : std::get_if<std::string>(scalar);
    if (text == nullptr)
      return FieldError(member.name, absl::StrCat(" is ", JsonTypeName(member), "; it must be a string"));
    name = *text;
  }
  if (!name.has_value()) return FieldError("lora_name", " is missing; it must be the name of an adapter");
  return *std::move(name);
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
  // A kubelet uses the pod's address, and Prometheus any name that it has discovered.
  const bool any_host = request.Path() == "/livez" || request.Path() == "/readyz" || request.Path() == "/metrics";
  if (const auto failure = CheckHost(request, options_.hosts); failure && !(any_host && failure->status == 421)) {
    return Failure(PlainHttpError(failure->status, failure->message), record);
  }
  if (const auto failure = CheckOrigin(request, options_.hosts)) {
    return Failure(PlainHttpError(failure->status, failure->message), record);
  }
  const std::string path(request.Path());
  const bool changes = path == kLoadAdapter || path == kUnloadAdapter;
  if (path != "/livez" && path != "/readyz" && path != "/metrics" && path != "/probe" && path != kUsage && !changes) {
    return Failure(PlainHttpError(404, absl::StrCat("there is no such path; valid values are /livez, /readyz, "
                                                    "/metrics, /probe, ",
                                                    kUsage, ", ", kLoadAdapter, " and ", kUnloadAdapter)),
                   record);
  }
  record.route = path;
  const bool allowed = changes ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (!allowed) {
    const std::string method = changes ? "POST" : "GET";
    HttpResponse response = Failure(PlainHttpError(405, absl::StrCat("this path takes ", method)), record);
    response.headers.push_back({"Allow", method});
    return response;
  }
  if (changes) return ChangeAdapter(request, record);
  if (path == kUsage) return Usage(request, record);
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

HttpResponse AdminHandler::ChangeAdapter(const HttpRequest& request, CallRecord& record) {
  if (const absl::Status allowed = CheckAccess(request, record); !allowed.ok()) {
    return Failure(HttpErrorOf(allowed), record);
  }
  const absl::StatusOr<std::string> name = ReadAdapterName(request.body);
  if (!name.ok()) return Failure(HttpErrorOf(name.status()), record);
  boost::json::object answer = {{"status", "ok"}, {"lora_name", *name}};
  if (request.Path() == kLoadAdapter) {
    const absl::Duration begun = base::SteadyNow();
    const absl::StatusOr<LoadedAdapter> loaded = service_.LoadAdapter(*name);
    if (!loaded.ok()) return Failure(HttpErrorOf(loaded.status()), record);
    answer["parent"] = loaded->model;
    answer["digest"] = loaded->adapter.digest;
    answer["bytes"] = loaded->adapter.bytes;
    answer["step"] = loaded->adapter.step;
    answer["seconds"] = absl::ToDoubleSeconds(base::SteadyNow() - begun);
  } else if (const absl::Status unloaded = service_.UnloadAdapter(*name); !unloaded.ok()) {
    return Failure(HttpErrorOf(unloaded), record);
  }
  return {.status = 200,
          .headers = {{"Content-Type", "application/json"}},
          .body = base::PlainJson(boost::json::value(std::move(answer)))};
}

HttpResponse AdminHandler::Usage(const HttpRequest& request, CallRecord& record) {
  if (const absl::Status allowed = CheckAccess(request, record); !allowed.ok()) {
    return Failure(HttpErrorOf(allowed), record);
  }
  for (const std::string& name : QueryNames(request.Query())) {
    const absl::Status known = CheckName("query parameter", name, {"key", "since", "until"});
    if (!known.ok()) return Failure(HttpErrorOf(known), record);
  }
  absl::StatusOr<UsageQuery> query = ReadUsageQuery(request.Query(), absl::Now());
  if (!query.ok()) return Failure(HttpErrorOf(query.status()), record);
  query->key = QueryValue(request.Query(), "key");
  const absl::StatusOr<std::vector<DayUsage>> usage = service_.Usage(*query);
  if (!usage.ok()) return Failure(HttpErrorOf(usage.status()), record);
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = UsageJson(*query, *usage)};
}

absl::Status AdminHandler::CheckAccess(const HttpRequest& request, CallRecord& record) const {
  switch (options_.access) {
    case AdminAccess::kEveryone:
      return absl::OkStatus();
    case AdminAccess::kNone:
      return absl::PermissionDeniedError(
          "this call uses the devices, shows all keys or changes what is served, and other machines can reach this "
          "listener: set admin_keys_file to a file with a line of `tessera keys NAME`, or listen.admin to a loopback "
          "address");
    case AdminAccess::kKeys:
      break;
  }
  if (request.CountHeaders("authorization") > 1) {
    return absl::UnauthenticatedError("there is more than one Authorization header");
  }
  const absl::StatusOr<Caller> caller = options_.gate->Authenticate(request.Header("authorization"));
  if (!caller.ok()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "this call uses the devices, shows all keys or changes what is served and needs a key of admin_keys_file: ",
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
