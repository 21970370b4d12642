// A number as an error message shows it. Pure.
#pragma once

#include <string>

namespace tessera::base {

// The fewest digits that read back as the same number, without an exponent where it has up to 21 digits before the
// point and six zeros after it: 0.1, 1000.0001, 18446744073709551616, 1e+300, nan.
std::string NumberText(double number);

}  // namespace tessera::base
