// CRC-32C: the checksum with Castagnoli's polynomial, as in iSCSI (RFC 3720, appendix B.4) and TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::base {

uint32_t Crc32c(std::string_view bytes);

}  // namespace tessera::base
