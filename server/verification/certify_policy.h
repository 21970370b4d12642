// CertifyPolicy says what happens with a layout without a certificate.
#pragma once

#include <array>
#include <cstdint>

#include "base/fields/enum_names.h"

namespace tessera::server {

enum class CertifyPolicy : uint8_t {
  kAuto,     // it is verified now, and refused if that fails
  kRequire,  // it is refused
  kOff,      // it is used, and every answer says that it is not certified
};
constexpr auto NamesOf(CertifyPolicy) { return std::array{"auto", "require", "off"}; }

}  // namespace tessera::server
