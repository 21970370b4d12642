// Fuzz test: any header Content-Type, up to the first line feed, and any body are refused with a bounded message, or
// read into parts of the body that follow each other.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/error_response.h"
#include "server/http/image_edit_form.h"

namespace {

void CheckError(const absl::Status& status) {
  const std::string json = tessera::server::ErrorJson(tessera::server::HttpErrorOf(status));
  if (json.size() > 2000 || status.code() != absl::StatusCode::kInvalidArgument) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  if (line == text.npos) return 0;
  const absl::StatusOr<std::string> boundary = tessera::server::FormBoundary(text.substr(0, line));
  if (!boundary.ok()) {
    CheckError(boundary.status());
    return 0;
  }
  const absl::string_view body = text.substr(line + 1);
  const auto parts =
      tessera::server::ReadForm(body, *boundary, tessera::server::ImageEditFields(), {.parts = 8, .header_bytes = 256});
  if (!parts.ok()) {
    CheckError(parts.status());
    return 0;
  }
  if (parts->size() > 8) std::abort();
  const char* end = body.data();
  for (const tessera::server::FormPart& part : *parts) {
    if (part.content.data() < end || part.content.size() > part.field->most_bytes) std::abort();
    end = part.content.data() + part.content.size();
    if (part.content.find("\r\n--" + *boundary) != part.content.npos) std::abort();
  }
  if (end > body.data() + body.size()) std::abort();
  return 0;
}
