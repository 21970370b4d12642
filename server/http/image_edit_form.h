// Reads the forms that OpenAI's clients send to POST /v1/images/edits. Pure functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/http/http_message.h"
#include "server/http/image_request_json.h"
#include "server/http/multipart_form.h"

namespace tessera::server {

// Everything but the pictures is as in a body of JSON.
struct EditBody {
  GenerationBody body;
  // The files, not decoded, in their order: parts of the request's body, which must outlive them. With the fields of
  // other clients, a text in place of a file is a URL or a data URL.
  std::vector<absl::string_view> images;  // 1 to control::kMaxPictures
  absl::string_view mask;                 // empty: none
};

// Returns the fields of such a form: image (also image[]) and mask, which are files, and the other fields of an edit.
// With `foreign` also url, url[] and reference_image for image, and mask_image for mask, which clients of SGLang and
// vLLM-Omni send as files or texts.
absl::Span<const FormField> ImageEditFields(bool foreign = false);

// INVALID_ARGUMENT for a body that is no form, or has no image or an empty file, and, with the field, for a field that
// is unknown, given twice, or of the wrong type; numbers and lists are written as in JSON, and flags are "true" or
// "false". ValidateImageRequest checks the values.
absl::StatusOr<EditBody> ReadImageEditForm(const HttpRequest& request, bool foreign = false);

}  // namespace tessera::server
