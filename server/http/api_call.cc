#include "server/http/api_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/http/error_response.h"

namespace tessera::server {
namespace {

// Returns the values of the pattern's parameters if the path fits it.
std::optional<std::vector<std::string>> Fit(absl::string_view pattern, absl::string_view path) {
  const std::vector<absl::string_view> wanted = absl::StrSplit(pattern, '/');
  const std::vector<absl::string_view> given = absl::StrSplit(path, '/');
  std::vector<std::string> parameters;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i >= given.size()) return std::nullopt;
    if (absl::EndsWith(wanted[i], "...}")) {
      std::string rest;
      for (size_t j = i; j < given.size(); ++j) absl::StrAppend(&rest, j > i ? "/" : "", given[j]);
      if (rest.empty()) return std::nullopt;
      parameters.push_back(DecodePath(rest));
      return parameters;
    }
    if (absl::StartsWith(wanted[i], "{")) {
      if (given[i].empty()) return std::nullopt;
      parameters.push_back(DecodePath(given[i]));
    } else if (wanted[i] != given[i]) {
      return std::nullopt;
    }
  }
  if (given.size() != wanted.size()) return std::nullopt;
  return parameters;
}

}  // namespace

ApiReply::ApiReply(std::shared_ptr<HttpReply> reply, CallRecord record, std::vector<HttpHeader> headers,
                   const ApiOptions& options)
    : reply_(std::move(reply)),
      options_(options),
      begun_(options.now()),
      headers_(std::move(headers)),
      record_(std::move(record)) {}

ApiReply::~ApiReply() {
  record_.status = complete_ ? record_.status : 0;
  Complete();
}

void ApiReply::AddHeader(HttpHeader header) { headers_.push_back(std::move(header)); }

void ApiReply::Send(HttpResponse response) {
  record_.status = response.status;
  record_.response_bytes = response.BodyBytes();
  const std::vector<HttpHeader> own = response.headers;
  for (const HttpHeader& header : headers_) {
    const auto same = [&](const HttpHeader& other) { return absl::EqualsIgnoreCase(other.name, header.name); };
    if (std::ranges::none_of(own, same)) response.headers.push_back(header);
  }
  reply_->Send(std::move(response));
  Complete();
}

void ApiReply::SendError(const absl::Status& status) {
  const HttpError error = HttpErrorOf(status);
  record_.error_code = error.code;
  Send(ErrorResponse(error));
}

void ApiReply::SendJson(int status, std::string json) {
  Send({.status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(json)});
}

void ApiReply::SendJson(int status, base::SharedBytes json) {
  Send({.status = status, .headers = {{"Content-Type", "application/json"}}, .body = "", .pieces = std::move(json)});
}

void ApiReply::StartEvents() {
  HttpResponse head = {.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = ""};
  record_.status = head.status;
  // Keeps proxies from buffering events.
  head.headers.push_back({"X-Accel-Buffering", "no"});
  head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
  reply_->StartStream(std::move(head), {.interval = options_.heartbeat, .text = ": waiting\n\n"});
}

void ApiReply::Write(std::string part) {
  record_.response_bytes += part.size();
  reply_->Write(std::move(part));
}

void ApiReply::Write(base::SharedBytes part) {
  record_.response_bytes += part->size();
  reply_->Write(std::move(part));
}

void ApiReply::Finish() {
  reply_->Finish();
  Complete();
}

void ApiReply::Complete() {
  if (complete_) return;
  complete_ = true;
  record_.duration = options_.now() - begun_;
  if (options_.record) options_.record(record_);
}

RouteMatch MatchRoute(const std::vector<ApiRoute>& routes, absl::string_view method, absl::string_view path) {
  RouteMatch match;
  const absl::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const ApiRoute& route : routes) {
    std::optional<std::vector<std::string>> parameters = Fit(route.pattern, path);
    if (!parameters.has_value()) continue;
    match.methods.push_back(route.method);
    if (route.method != wanted || match.route != nullptr) continue;
    match.route = &route;
    match.parameters = *std::move(parameters);
  }
  return match;
}

}  // namespace tessera::server
