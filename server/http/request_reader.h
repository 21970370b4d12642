// RequestReader turns the bytes of a connection into requests and checks their framing: ambiguous framing is refused,
// and so are transfer codings other than chunked. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_message.h"

namespace tessera::server {

struct HttpLimits;

class RequestReader {
 public:
  enum class Progress : uint8_t { kMore, kComplete, kRefused };

  // `limits` must outlive the reader.
  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  void Reset();  // for the next request

  // Consumes this request's bytes from the front of `input`. Nothing more may be read after a refusal.
  Progress Read(std::string& input);

  bool has_header() const;
  bool expects_continue() const;  // the client waits for 100 Continue before it sends the body
  bool keep_alive() const;
  bool is_http_1_1() const;

  HttpRequest TakeRequest();  // requires a complete one

  int refusal_status() const { return refusal_status_; }
  const std::string& refusal_reason() const { return refusal_reason_; }

 private:
  struct Parser;

  Progress Parse(const std::string& input, size_t& taken);
  Progress Refuse(int status, std::string reason);
  bool CheckHeader();

  const HttpLimits& limits_;
  std::unique_ptr<Parser> parser_;
  bool header_checked_ = false;
  size_t body_wire_bytes_ = 0;
  int refusal_status_ = 0;
  std::string refusal_reason_;
};

}  // namespace tessera::server
