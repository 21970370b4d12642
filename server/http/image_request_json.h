// Reads the JSON body of POST /v1/images/generations, POST /v1/images/edits and POST /v1/jobs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/api/foreign_client.h"
#include "server/api/image_request.h"
#include "server/api/request_values.h"
#include "server/http/client_fields.h"

namespace tessera::server {

enum class ResponseFormat : uint8_t { kBase64, kUrl };

struct GenerationBody {
  ImageRequest request;
  ResponseFormat response_format = ResponseFormat::kBase64;
  bool stream = false;
  ClientNames client_names;          // for WithClientName
  std::vector<std::string> ignored;  // for IgnoredFieldsWarning
};

// Whether a text that stands for a picture is a URL or a data URL; otherwise it is the file itself, in some form.
bool IsPictureUrl(absl::string_view text);

// Selects the fields that are valid in addition to the image's: some make sense only if the caller waits.
enum class BodyKind : uint8_t { kGeneration, kEdit, kJob };

// INVALID_ARGUMENT that names the field for an unknown field or one of the wrong type; null is the same as absent.
// ValidateImageRequest checks the values. The fields of `clients` are valid as well (ReadClientJson); errors about them
// have the clients' names.
absl::StatusOr<GenerationBody> ReadGenerationBody(absl::string_view json, BodyKind kind,
                                                  absl::Span<const ForeignClient> clients = {});

// Reads the fields of such a body from the members of a JSON object; the other values of `body` are kept. Errors as
// above.
absl::Status ReadMembers(const std::vector<FlatJsonMember>& members, BodyKind kind, GenerationBody& body);

// Returns INVALID_ARGUMENT for a name that is none of `fields`, with the field that it probably means.
absl::Status UnknownField(const std::string& name, absl::Span<const std::string> fields);

// A field of such a body.
struct BodyField {
  enum class Kind : uint8_t { kText, kWholeNumber, kNumber, kFlag, kList, kPictures };
  std::string name;
  Kind kind = Kind::kText;
};
std::vector<BodyField> BodyFields(BodyKind kind);

// Returns the names of all fields that such a body may have.
std::vector<std::string> GenerationFields(BodyKind kind);

}  // namespace tessera::server
