// Reads all bytes of a file that a store or a service has opened.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/files/byte_source.h"

namespace tessera {

inline absl::StatusOr<std::string> ReadBytes(const absl::StatusOr<base::SharedBytes>& opened) {
  if (!opened.ok()) return opened.status();
  return base::ReadAll(**opened);
}

}  // namespace tessera
