// Reads a body of POST /v1/images/generations that a client of another image server sent: each field of that server
// becomes the field of this API that means the same. docs/clients.md lists them. Pure functions.
//
// Tables of the fields of each client are applied to the parsed JSON before the body's fields are read, so all checks
// are those of this API's own fields.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/api/foreign_client.h"
#include "server/http/flat_json.h"

namespace tessera::server {

// By the beginning of an error's message about a field of this API, the client's name for the field. For a size it is
// "width and height".
using ClientNames = std::map<std::string, std::string, std::greater<>>;

struct TranslatedBody {
  std::vector<FlatJsonMember> members;  // of this API's fields, and unknown ones, with unique names
  ClientNames client_names;             // of the members that had another name
  std::vector<std::string> ignored;     // fields of the clients without a meaning here, each once
};

// Reads a JSON object with the fields `own` of this API and those of `clients`. Where both have a name, it is the
// API's; where two clients have it, it is the first one's. A field in an object is named OUTER.INNER.
//
// INVALID_ARGUMENT as from ReadFlatJson, and with the client's name of the field for two fields that give one of this
// API's fields different values, for an adapter that is not given by its name, and for a value that cannot be
// converted. Without `clients`, it is ReadFlatJson.
absl::StatusOr<TranslatedBody> ReadClientJson(absl::string_view json, absl::Span<const ForeignClient> clients,
                                              absl::Span<const std::string> own);

// Returns an error about a field with the client's name for it; other errors are returned unchanged.
absl::Status WithClientName(const absl::Status& status, const ClientNames& names);

// Returns the value of a header Warning (RFC 7234, 5.5) that lists the fields, at most about 500 bytes.
std::string IgnoredFieldsWarning(absl::Span<const std::string> ignored);

// INVALID_ARGUMENT about `field` if the text has a part of an element <sd_cpp_extra_args>: its JSON must not be drawn.
absl::Status CheckNoExtraArgs(absl::string_view field, absl::string_view text);

}  // namespace tessera::server
