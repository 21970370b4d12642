// Formats numbers of bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::base {

std::string ByteText(uint64_t bytes);  // "24.0 KiB", "1.5 MiB", "23.80 GiB"
std::string GibText(double bytes);     // "23.8 GiB"

}  // namespace tessera::base
