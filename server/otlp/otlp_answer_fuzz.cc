// Parses arbitrary bytes as what a receiver of spans answers, and as the headers that a file or a variable has.
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/config/header_lines.h"
#include "server/otlp/otlp_settings.h"
#include "server/otlp/span_transport.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::server;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  if (RejectedSpans(text) < 0) std::abort();
  if (const auto wait = ParseRetryAfter(text, absl::UnixEpoch()); wait.has_value() && *wait < absl::ZeroDuration()) {
    std::abort();
  }
  for (const auto& headers : {ParseHeaderLines(text), ParseHeaderVariable(text)}) {
    if (!headers.ok()) continue;
    for (const std::string& header : *headers) {
      if (header.find(": ") == std::string::npos || header.find_first_of("\r\n") != std::string::npos) std::abort();
    }
  }
  return 0;
}
