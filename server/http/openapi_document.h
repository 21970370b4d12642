// docs/openapi.json as it was when the server was built.
#pragma once

#include <string>

namespace tessera::server {

std::string OpenApiDocument();

}  // namespace tessera::server
