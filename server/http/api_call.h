// ApiCall is one call of the public API on its way to a route; ApiRoute is an entry of the table of routes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/threads/task_pool.h"
#include "server/api/caller.h"
#include "server/api/foreign_client.h"
#include "server/api/image_service.h"
#include "server/calls/call_gate.h"
#include "server/calls/call_record.h"
#include "server/http/call_checks.h"
#include "server/http/http_message.h"

namespace tessera::server {

struct ApiOptions {
  HostRules hosts;
  std::string public_url;                 // prefix of links; empty: from the caller's Host header
  bool web_page = false;                  // serve the page for browsers
  bool health = false;                    // serve GET /health
  size_t picture_body_bytes = 256 << 20;  // of bodies that may have pictures
  std::function<std::string()> metrics;   // the answer of GET /metrics; null: the path does not exist
  std::vector<ForeignClient> clients;     // whose fields generations may have as well
  absl::Duration heartbeat = absl::Seconds(15);
  CallBeginner begin;  // may be null
  CallRecorder record;
  std::function<absl::Time()> now = absl::Now;
};

// The objects that all routes use.
struct ApiContext {
  ImageService& service;
  CallGate& gate;
  base::TaskPool& pool;
  const ApiOptions& options;
};

// The reply of a call, with the headers common to all answers and the record of the call.
class ApiReply {
 public:
  ApiReply(std::shared_ptr<HttpReply> reply, CallRecord record, std::vector<HttpHeader> headers,
           const ApiOptions& options);
  ~ApiReply();

  void AddHeader(HttpHeader header);  // of the answer, before it begins
  void Send(HttpResponse response);   // its headers override the common ones
  void SendError(const absl::Status& status);
  void SendJson(int status, std::string json);
  void SendJson(int status, base::SharedBytes json);

  void StartEvents();  // a stream of server-sent events, with comments as heartbeats
  void Write(std::string part);
  void Write(base::SharedBytes part);
  void Finish();
  uint64_t pending_bytes() const { return reply_->pending_bytes(); }
  void OnClosed(std::function<void()> closed) { reply_->OnClosed(std::move(closed)); }

  CallRecord& record() { return record_; }  // until the reply is complete, by one thread at a time

 private:
  void Complete();

  const std::shared_ptr<HttpReply> reply_;
  const ApiOptions& options_;
  const absl::Time begun_;
  std::vector<HttpHeader> headers_;
  CallRecord record_;
  bool complete_ = false;
};

struct ApiCall {
  HttpRequest request;
  std::vector<std::string> parameters;  // values of {…} in the pattern, in order, decoded
  Caller caller;
  std::string base_url;
  std::string base_path;  // path of public_url, prefix of paths that a client resolves itself
  std::shared_ptr<ApiReply> reply;
};

struct ApiRoute {
  std::string method;
  std::string pattern;  // "/v1/jobs/{id}/events"; "{id...}" at the end matches the rest of the path
  bool needs_key = true;
  bool reads_body = false;              // JSON
  bool reads_form = false;              // multipart/form-data, also in addition to JSON
  size_t most_body_bytes = 0;           // at most HttpLimits::body_bytes: its limit
  std::vector<std::string> query = {};  // valid names
  bool any_query = false;               // accept all other names
  bool at_once = false;                 // `handle` never waits
  bool any_host = false;                // probes use any name or address
  std::function<void(ApiCall call)> handle;
};

// The route for a path, and the methods of the path.
struct RouteMatch {
  const ApiRoute* route = nullptr;
  std::vector<std::string> parameters;
  std::vector<std::string> methods;  // of all routes with this path; empty: there are none
};
RouteMatch MatchRoute(const std::vector<ApiRoute>& routes, absl::string_view method, absl::string_view path);

}  // namespace tessera::server
