// The newest version of the job store's schema that this program knows, without the headers of the job store.
#pragma once

#include <cstdint>

namespace tessera::server {

int64_t NewestSchema();

}  // namespace tessera::server
