#include "server/http/api_handler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/api/field_checks.h"
#include "server/calls/call_ids.h"
#include "server/config/web_url.h"
#include "server/http/api_routes.h"
#include "server/http/error_response.h"
#include "server/http/multipart_form.h"

namespace tessera::server {
namespace {

constexpr int kTaskThreads = 4;
constexpr size_t kBytesOfPictures = size_t{64} << 10;  // a body of so many bytes has pictures
constexpr int kSubmissionThreads = 8;

std::vector<ApiRoute> AllRoutes(const ApiContext& context) {
  std::vector<ApiRoute> routes = GenerationRoutes(context);
  for (auto more : {FileRoutes(context), JobRoutes(context), ReadRoutes(context), WebPageRoutes(context)}) {
    routes.insert(routes.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return routes;
}

// "application/json; charset=utf-8" → "application/json"
std::string MediaTypeOf(const HttpRequest& request) {
  const std::string type = request.Header("content-type").value_or("");
  return absl::AsciiStrToLower(absl::StripAsciiWhitespace(absl::string_view(type).substr(0, type.find(';'))));
}

void SendPlainError(ApiReply& reply, int status, std::string message, std::vector<HttpHeader> headers = {}) {
  const HttpError error = PlainHttpError(status, std::move(message));
  reply.record().error_code = error.code;
  HttpResponse response = ErrorResponse(error);
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  reply.Send(std::move(response));
}

// Returns why the body of the request cannot be read as JSON, by its headers; nothing if it can.
std::optional<std::string> ProblemOfBody(const ApiRoute& route, const HttpRequest& request) {
  const std::string encoding = request.Header("content-encoding").value_or("identity");
  if (!absl::EqualsIgnoreCase(encoding, "identity")) {
    return "bodies with a Content-Encoding are not read; send it as it is";
  }
  if (!route.reads_body && !route.reads_form) return std::nullopt;
  const std::string type = MediaTypeOf(request);
  if (route.reads_body && type == "application/json") return std::nullopt;
  if (route.reads_form && type == kFormMediaType) return std::nullopt;
  std::vector<std::string> valid;
  if (route.reads_form) valid.push_back(absl::StrCat("'", kFormMediaType, "'"));
  if (route.reads_body) valid.push_back("'application/json'");
  return absl::StrCat("the Content-Type is ", QuotedValue(type), "; valid values are ", absl::StrJoin(valid, ", "));
}

// Response headers that scripts of another origin may read: all that the API promises.
constexpr char kExposedHeaders[] = "Allow, Location, Retry-After, WWW-Authenticate, x-request-id, x-should-retry";

// Returns the request headers that scripts of an allowed origin may send: all that they request. Clients and tracers
// add headers that the server does not read, so no list is needed. `*` would not cover Authorization (Fetch, 4.8).
std::string AllowedHeaders(const HttpRequest& request) {
  std::vector<std::string> names;
  const std::string asked = request.Header("access-control-request-headers").value_or("");
  for (absl::string_view name : absl::StrSplit(asked, ',')) {
    name = absl::StripAsciiWhitespace(name);
    const bool is_token = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return absl::ascii_isalnum(c) || absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
    });
    if (is_token) names.push_back(absl::AsciiStrToLower(name));
  }
  if (names.empty()) return "authorization, content-type, idempotency-key, traceparent, x-request-id";
  return absl::StrJoin(names, ", ");
}

// Returns a message for requests of OpenAI's clients whose path looks like an image's, but which this server does not
// support.
std::optional<std::string> NotMadeHere(const HttpRequest& request) {
  if (request.method != "POST" || request.Path() != "/v1/images/variations") return std::nullopt;
  return "this server does not make variations of images; POST /v1/images/edits makes images from pictures";
}

// CheckHost, except that some routes answer under any host name: it needs to protect only those that act or that reveal
// callers' data.
std::optional<CheckFailure> CheckHostOfRoute(const std::vector<ApiRoute>& routes, const HttpRequest& request,
                                             const HostRules& rules) {
  std::optional<CheckFailure> failure = CheckHost(request, rules);
  if (!failure.has_value() || failure->status != 421) return failure;
  const RouteMatch match = MatchRoute(routes, request.method, request.Path());
  return match.route != nullptr && match.route->any_host ? std::nullopt : failure;
}

absl::Status CheckQuery(const ApiRoute& route, const HttpRequest& request) {
  if (route.any_query) return absl::OkStatus();
  for (const std::string& name : QueryNames(request.Query())) {
    if (std::find(route.query.begin(), route.query.end(), name) != route.query.end()) continue;
    const std::string shown = name.size() <= 64 ? name : QuotedValue(name);
    return FieldError(shown, route.query.empty()
                                 ? ": this route reads no query parameters"
                                 : absl::StrCat(": ", CheckName("query parameter", name, route.query).message()));
  }
  return absl::OkStatus();
}

}  // namespace

ApiHandler::ApiHandler(ImageService& service, CallGate& gate, ApiOptions options)
    : options_(std::move(options)),
      base_path_(ParseWebUrl(options_.public_url).value_or(WebUrl()).path),
      gate_(gate),
      pool_(kTaskThreads),
      routes_(AllRoutes({service, gate, pool_, options_})) {}

void ApiHandler::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  CallRecord record;
  record.request_id = RequestIdFrom(request.Header("x-request-id").value_or(""));
  record.method = request.method.substr(0, 16);
  record.peer = request.peer;
  record.trace_parent = TraceParentFrom(request.Header("traceparent").value_or(""));
  record.request_bytes = request.body.size();
  if (options_.begin) options_.begin(record);
  std::vector<HttpHeader> headers = {
      {"x-request-id", record.request_id}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}};
  const std::optional<CheckFailure> wrong_origin = CheckOrigin(request, options_.hosts);
  if (const auto origin = request.Header("origin"); origin.has_value() && !wrong_origin) {
    headers.push_back({"Access-Control-Allow-Origin", *origin});
    headers.push_back({"Access-Control-Expose-Headers", kExposedHeaders});
    headers.push_back({"Vary", "Origin"});
  }
  ApiCall call;
  call.caller.request_id = record.request_id;
  call.caller.trace_parent = record.trace_parent;
  call.reply = std::make_shared<ApiReply>(std::move(reply), std::move(record), std::move(headers), options_);
  call.request = std::move(request);
  if (const auto failure = CheckHostOfRoute(routes_, call.request, options_.hosts)) {
    return SendPlainError(*call.reply, failure->status, failure->message);
  }
  if (wrong_origin) return SendPlainError(*call.reply, wrong_origin->status, wrong_origin->message);
  call.base_url = options_.public_url;
  // Without a host name, links are paths.
  if (const auto host = call.request.Header("host"); host.has_value() && call.base_url.empty()) {
    call.base_url = absl::StrCat(call.request.secure ? "https://" : "http://", *host);
  }
  call.base_path = base_path_;
  Route(std::move(call));
}

void ApiHandler::Route(ApiCall call) {
  RouteMatch match = MatchRoute(routes_, call.request.method, call.request.Path());
  if (match.methods.empty()) {
    return SendPlainError(*call.reply, 404, "there is no such path; GET /openapi.json lists the valid ones");
  }
  const std::string allowed = absl::StrJoin(match.methods, ", ");
  if (call.request.method == "OPTIONS" && call.request.Header("origin").has_value()) {
    return call.reply->Send(
        {.status = 204,
         .headers = {{"Access-Control-Allow-Methods", allowed},
                     {"Access-Control-Allow-Headers", AllowedHeaders(call.request)},
                     {"Access-Control-Max-Age", "600"},
                     {"Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"}},
         .body = ""});
  }
  if (match.route == nullptr) {
    if (const auto reason = NotMadeHere(call.request); reason.has_value()) {
      return SendPlainError(*call.reply, 404, *reason);
    }
    return SendPlainError(*call.reply, 405, absl::StrCat("this path takes ", allowed), {{"Allow", allowed}});
  }
  call.reply->record().route = match.route->pattern;
  call.parameters = std::move(match.parameters);
  if (match.route->needs_key) {
    const absl::StatusOr<Caller> caller = CallerOf(call.request);
    if (!caller.ok()) return call.reply->SendError(caller.status());
    call.caller.tenant = caller->tenant;
    call.caller.limits = caller->limits;
    call.reply->record().tenant = caller->tenant;
  }
  const absl::Status query = CheckQuery(*match.route, call.request);
  if (!query.ok()) return call.reply->SendError(query);
  if (const auto problem = ProblemOfBody(*match.route, call.request)) {
    return SendPlainError(*call.reply, 415, *problem);
  }
  // A check failed before the body and passes now, because the keys were reloaded.
  if (!call.request.has_body) {
    return call.reply->SendError(absl::UnavailableError("the server's keys have just changed; repeat the request"));
  }
  HandleOn(*match.route, std::move(call));
}

// A submission that may wait for another server, which fetches its pictures or judges it, or for the decoder of its
// pictures does so on separate threads, so that it delays no other call.
void ApiHandler::HandleOn(const ApiRoute& route, ApiCall call) {
  const RequestRules rules = gate_.rules();
  const bool may_wait =
      rules.fetcher != nullptr || rules.input_check != nullptr || call.request.body.size() >= kBytesOfPictures;
  if (route.method != "POST" || !may_wait) {
    return route.handle(std::move(call));
  }
  std::call_once(submissions_started_, [this] { submissions_ = std::make_unique<base::TaskPool>(kSubmissionThreads); });
  submissions_->Post(
      [&route, waiting = std::make_shared<ApiCall>(std::move(call))] { route.handle(std::move(*waiting)); });
}

absl::StatusOr<Caller> ApiHandler::CallerOf(const HttpRequest& request) const {
  if (request.CountHeaders("authorization") > 1) {
    return absl::UnauthenticatedError("there is more than one Authorization header");
  }
  return gate_.Authenticate(request.Header("authorization"));
}

std::optional<size_t> ApiHandler::MostBodyBytes(const HttpRequest& request) const {
  const RouteMatch match = MatchRoute(routes_, request.method, request.Path());
  const bool is_refused = match.route == nullptr || CheckHostOfRoute(routes_, request, options_.hosts) ||
                          CheckOrigin(request, options_.hosts) || !CheckQuery(*match.route, request).ok() ||
                          ProblemOfBody(*match.route, request) || (match.route->needs_key && !CallerOf(request).ok());
  return is_refused ? std::nullopt : std::optional(match.route->most_body_bytes);
}

bool ApiHandler::AnswersAtOnce(const HttpRequest& request) const {
  const RouteMatch match = MatchRoute(routes_, request.method, request.Path());
  return match.route != nullptr && match.route->at_once;
}

HttpResponse ApiHandler::Refusal(int status, const std::string& reason, const std::string& peer) {
  const HttpError error = PlainHttpError(status, reason);
  CallRecord record;
  record.request_id = RequestIdFrom("");
  record.peer = peer;
  record.status = status;
  record.error_code = error.code;
  HttpResponse response = ErrorResponse(error);
  response.headers.push_back({"x-request-id", record.request_id});
  record.response_bytes = response.body.size();
  // Records are written on the pool, because they may wait for the disk.
  if (options_.record) pool_.Post([this, record = std::move(record)] { options_.record(record); });
  return response;
}

}  // namespace tessera::server
