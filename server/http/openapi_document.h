// docs/openapi.json as it was when the server was built.
#pragma once

#include <string>

namespace tessera {

std::string OpenApiDocument();

}  // namespace tessera
