// RequestReader turns the bytes of a connection into requests and checks their framing: ambiguous framing is refused,
// and so are transfer codings other than chunked. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_message.h"

namespace tessera::server {

struct HttpLimits;

class RequestReader {
 public:
  enum class Progress : uint8_t {
    kMore,
    kLarge,  // the body is larger than HttpLimits::body_bytes: nothing more may be read before AllowLarge
    kComplete,
    kRefused,
  };

  // `limits` must outlive the reader.
  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  void Reset();  // for the next request

  // Consumes this request's bytes from the front of `input`. Nothing more may be read after a refusal.
  Progress Read(std::string& input);

  // Allows this request's body to have up to `most` bytes, and returns how many it may occupy: its length, or `most` if
  // that is not known yet. Refuses it, and returns nothing, if it is longer. Required after kLarge, once.
  std::optional<size_t> AllowLarge(size_t most);
  // Allocates the memory of a large body, so that it is not moved while it grows.
  void ReserveLarge();

  bool has_header() const;
  bool expects_continue() const;  // the client waits for 100 Continue before it sends the body
  bool keep_alive() const;
  bool is_http_1_1() const;

  size_t body_bytes() const;  // received so far

  HttpRequest Head() const;   // the request without its body; requires a header
  HttpRequest TakeRequest();  // requires a complete one

  int refusal_status() const { return refusal_status_; }
  const std::string& refusal_reason() const { return refusal_reason_; }

 private:
  struct Parser;

  Progress Parse(const std::string& input, size_t& taken);
  Progress Refuse(int status, std::string reason);
  Progress RefuseLarge() { return Refuse(413, "the body of the request is too large"); }
  bool CheckHeader();

  const HttpLimits& limits_;
  std::unique_ptr<Parser> parser_;
  bool header_checked_ = false;
  size_t most_body_bytes_ = 0;
  bool is_large_allowed_ = false;
  size_t body_wire_bytes_ = 0;
  int refusal_status_ = 0;
  std::string refusal_reason_;
};

}  // namespace tessera::server
