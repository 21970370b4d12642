// The contents of docs/openapi.json when the server was built.
#pragma once

#include <string>

namespace tessera::server {

std::string OpenApiDocument();

}  // namespace tessera::server
