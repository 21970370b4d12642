// Reads bodies of the media type multipart/form-data (RFC 7578, in the framing of RFC 2046). Pure functions.
//
// Everything that standards allow and no client sends is refused: text before the first part and after the last one,
// folded headers, other transfer encodings. Names of files are never returned, so they cannot be used as paths. The
// time is linear in the size of the body.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::server {

inline constexpr char kFormMediaType[] = "multipart/form-data";

// A field that a form may have.
struct FormField {
  const char* name;
  bool is_file = false;      // otherwise it is a text in UTF-8
  size_t most = 1;           // parts with this name
  size_t most_bytes = 4096;  // of the content of each
};

struct FormLimits {
  size_t parts = 64;
  size_t header_bytes = 4096;  // of one part
  size_t total_bytes = size_t{256} << 20;
};

struct FormPart {
  const FormField* field = nullptr;
  std::string media_type;     // in lower case, without parameters; empty: none is given
  absl::string_view content;  // of the body
};

// Returns the boundary of a header Content-Type, 1 to 70 characters. INVALID_ARGUMENT for another media type, and for a
// boundary that is missing, given twice or not valid (RFC 2046, 5.1.1).
absl::StatusOr<std::string> FormBoundary(absl::string_view content_type);

// Returns the parts in their order. `body` and `fields` must outlive them. INVALID_ARGUMENT, with the place, for a
// malformed or cut off body and for one beyond the limits; with the field, for a field that is unknown, given too
// often, too large, or not a text where it must be one.
absl::StatusOr<std::vector<FormPart>> ReadForm(absl::string_view body, absl::string_view boundary,
                                               absl::Span<const FormField> fields, const FormLimits& limits = {});

}  // namespace tessera::server
