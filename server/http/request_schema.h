// Returns the body of a request as a JSON Schema, made from the table of its fields (server/api/request_fields.h).
//
// GET /v1/schema returns it, and docs/openapi.json contains it. In addition to JSON Schema's keywords, a field has
// "x-option", its command line option; "x-metadata-key", its name in the text that pictures contain; and "x-read-with",
// the name among a model's options that shows that the model reads it.
#pragma once

#include <boost/json.hpp>

#include "server/http/image_request_json.h"

namespace tessera::server {

boost::json::object RequestSchema(BodyKind kind);

}  // namespace tessera::server
