// HTTP as the handlers see it: requests and replies without sockets. Tests call handlers with a test reply.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files/byte_source.h"

namespace tessera::server {

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request whose framing is valid. Everything else in it is as the client sent it.
struct HttpRequest {
  std::string method;
  std::string target;  // in origin form; for an absolute target the Host header has the host
  std::vector<HttpHeader> headers;
  // Memory of the server that a large body occupies, returned when this is destroyed: keep it as long as the body.
  std::shared_ptr<const void> body_room = nullptr;
  std::string body;
  std::string peer;      // address of the client
  bool secure = false;   // it came over TLS
  bool http_1_1 = true;  // otherwise HTTP/1.0, which has no Host header
  bool has_body = true;  // otherwise the body was not read, see HttpHandler::MostBodyBytes

  absl::string_view Path() const;   // of the target, not decoded
  absl::string_view Query() const;  // after the question mark
  // Returns the first header of that name, ignoring case; nullopt if there is none.
  std::optional<std::string> Header(absl::string_view name) const;
  size_t CountHeaders(absl::string_view name) const;
};

// Decodes percent signs; one without two hexadecimal digits is kept.
std::string DecodePath(absl::string_view path);

// Returns the first value of a query parameter, decoded; nullopt if it is absent.
std::optional<std::string> QueryValue(absl::string_view query, absl::string_view name);
// Returns the names of all parameters, decoded.
std::vector<std::string> QueryNames(absl::string_view query);

// The server sets the length and connection headers.
struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader> headers;
  std::string body;
  base::SharedBytes pieces = nullptr;  // replaces `body` with one that is read while it is sent; may be null

  uint64_t BodyBytes() const { return pieces == nullptr ? body.size() : pieces->size(); }
};

// The answer to one request: either Send once, or StartStream, any number of Write, Finish. Thread-safe and never
// blocking; calls after the end, or after the client has disconnected, do nothing. Destroying an unfinished reply
// closes the connection, and so does a body or part that cannot be read to its end: the client then gets less than was
// announced.
class HttpReply {
 public:
  // The text that a stream sends when nothing was written for a while.
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

  // Returns the number of written bytes that the client has not received yet.
  virtual uint64_t pending_bytes() const = 0;

  // Calls `closed` once if the client disconnects before the end of the reply, also if it already has; it must not
  // block.
  virtual void OnClosed(std::function<void()> closed) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called on one of the server's handler threads, where it may wait for the disk, unless AnswersAtOnce. The reply may
  // be kept and used later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;

  // Returns whether Handle answers this request without waiting. It is then called on the connection's thread, and
  // works even while all handler threads are busy.
  virtual bool AnswersAtOnce(const HttpRequest&) const { return false; }

  // Returns how many bytes the body of a request may have, by everything but the body: called for a body above
  // HttpLimits::body_bytes, which is always allowed, and for a client that waits for 100 Continue. If the request will
  // be refused whatever its body is, returns nothing; Handle is then called without the body, and the connection ends
  // with its answer. Called on the connections' threads, so it must not block.
  virtual std::optional<size_t> MostBodyBytes(const HttpRequest&) const { return 0; }

  // Returns the answer to a request of `peer` that could not be read. Called on the connections' threads, so it must
  // not block.
  virtual HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) = 0;
};

enum class BodyFraming { kLength, kChunked, kUntilClose };

// Returns the status line and headers, including the empty line.
std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool keep_alive);

// Returns the head that lets a client that waits for it send its body.
std::string ContinueHead();

// The text before and after a non-empty part of a chunked body, and the text that ends the body.
std::string ChunkHead(uint64_t part_bytes);
inline constexpr char kChunkEnd[] = "\r\n";
std::string LastChunk();

}  // namespace tessera::server
