// HTTP as the handlers see it: plain requests, plain replies, nothing of sockets. Tests drive handlers with a reply of
// their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/byte_source.h"

namespace tessera::server {

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request whose framing was found sound. Everything else in it is as the client sent it.
struct HttpRequest {
  std::string method;
  std::string target;  // in origin form; of one in absolute form the host stands in the Host header
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;      // address of the client
  bool secure = false;   // it came over TLS
  bool http_1_1 = true;  // else HTTP/1.0, which has no Host header

  absl::string_view Path() const;   // of the target, not decoded
  absl::string_view Query() const;  // behind the question mark
  // The first header of that name, in any case; nothing where there is none.
  std::optional<std::string> Header(absl::string_view name) const;
  size_t CountHeaders(absl::string_view name) const;
};

// Percent signs decoded; one without two digits stays as it is.
std::string DecodePath(absl::string_view path);

// The first value of a query parameter, decoded; nothing where it is absent.
std::optional<std::string> QueryValue(absl::string_view query, absl::string_view name);
// The names of all parameters, decoded.
std::vector<std::string> QueryNames(absl::string_view query);

// Length and connection headers are the server's business.
struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader> headers;
  std::string body;
  base::SharedBytes pieces = nullptr;  // the body in place of `body`, read while it is sent; may be null

  uint64_t BodyBytes() const { return pieces == nullptr ? body.size() : pieces->size(); }
};

// The answer to one request. Either Send once, or StartStream, any number of Write, Finish. Thread-safe and never
// blocking; calls after the end, or when the client is gone, do nothing. A reply that is dropped unfinished closes the
// connection, and so does a body or a part that cannot be read to its end: the client gets less than was announced.
class HttpReply {
 public:
  // What a stream says of its own accord when nothing was written for a while.
  struct Heartbeat {
    absl::Duration interval;
    std::string text;
  };

  virtual ~HttpReply() = default;
  virtual void Send(HttpResponse response) = 0;
  virtual void StartStream(HttpResponse head, Heartbeat heartbeat) = 0;  // the head's body is the first part
  virtual void Write(std::string part) = 0;
  virtual void Write(base::SharedBytes part) = 0;  // read while it is sent
  virtual void Finish() = 0;

  // Bytes written that the client has not taken yet.
  virtual uint64_t pending_bytes() const = 0;

  // `closed` is called once if the client goes away before the end of the reply, also when it already has; it must
  // not block.
  virtual void OnClosed(std::function<void()> closed) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called on one of the server's handler threads, where it may wait for the disk, unless AnswersAtOnce. The reply may
  // be kept and used later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;

  // Whether Handle answers this one without waiting for anything: then it is called on the connection's thread, and
  // answers also while all handler threads are busy.
  virtual bool AnswersAtOnce(const HttpRequest&) const { return false; }

  // The answer to a request of `peer` that could not be read. Called on the connections' threads, so it must not block.
  virtual HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) = 0;
};

enum class BodyFraming { kLength, kChunked, kUntilClose };

// Status line and headers, up to and with the empty line.
std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool keep_alive);

// Tells a client that waits for it to send its body.
std::string ContinueHead();

// What stands before and after a part of a chunked body, which is not empty, and what ends the body.
std::string ChunkHead(uint64_t part_bytes);
inline constexpr char kChunkEnd[] = "\r\n";
std::string LastChunk();

}  // namespace tessera::server
