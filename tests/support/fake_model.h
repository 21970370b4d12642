// FakeModel returns a model that no worker serves, for tests of requests: 16 to 1024 pixels in multiples of 16, four
// steps.
#pragma once

#include <string>

#include "server/api/served_model.h"

namespace tessera {

server::ServedModel FakeModel(const std::string& id = "fake");

}  // namespace tessera
