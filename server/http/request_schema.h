// The body of a request as a JSON Schema, from the table of its fields (server/api/request_fields.h).
//
// GET /v1/schema answers it, and docs/openapi.json has the same. Beside JSON Schema's own words a field has "x-option",
// its option on the command line; "x-metadata-key", its name in the text that pictures carry; and "x-read-with", the
// word among a model's options that says that the model reads it.
#pragma once

#include <boost/json.hpp>

#include "server/http/image_request_json.h"

namespace tessera::server {

boost::json::object RequestSchema(BodyKind kind);

}  // namespace tessera::server
