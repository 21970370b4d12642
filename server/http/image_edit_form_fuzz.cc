// Fuzz test: any header Content-Type, up to the first line feed, and any body are refused as a form of an edit with a
// bounded message in UTF-8, or give pictures that are parts of the body.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/text/utf8.h"
#include "control/parameters/picture_use.h"
#include "server/api/request_limits.h"
#include "server/http/error_response.h"
#include "server/http/image_edit_form.h"

namespace {

void CheckError(const absl::Status& status) {
  const std::string json = tessera::server::ErrorJson(tessera::server::HttpErrorOf(status));
  if (json.size() > 8000 || tessera::base::FirstInvalidUtf8(json) != json.size()) std::abort();
  if (status.code() != absl::StatusCode::kInvalidArgument) std::abort();
}

void CheckPicture(absl::string_view picture, absl::string_view body) {
  if (picture.data() < body.data() || picture.data() + picture.size() > body.data() + body.size()) std::abort();
  if (picture.empty() || picture.size() > tessera::server::kMaxPictureBytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  if (line == text.npos) return 0;
  const tessera::server::HttpRequest request = {.method = "POST",
                                                .target = "/v1/images/edits",
                                                .headers = {{"Content-Type", std::string(text.substr(0, line))}},
                                                .body = std::string(text.substr(line + 1))};
  const auto edit = tessera::server::ReadImageEditForm(request);
  if (!edit.ok()) {
    CheckError(edit.status());
    return 0;
  }
  if (edit->images.empty() || edit->images.size() > tessera::control::kMaxPictures) std::abort();
  for (const absl::string_view picture : edit->images) CheckPicture(picture, request.body);
  if (!edit->mask.empty()) CheckPicture(edit->mask, request.body);
  return 0;
}
