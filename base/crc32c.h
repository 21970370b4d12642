// CRC-32C: the checksum of Castagnoli's polynomial, as iSCSI (RFC 3720, appendix B.4) and TFRecord files have it.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::base {

uint32_t Crc32c(std::string_view bytes);

}  // namespace tessera::base
