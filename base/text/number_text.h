// Formats a number for an error message. Pure.
#pragma once

#include <string>

namespace tessera::base {

// Returns the fewest digits that read back as the same number, without an exponent for 0 and for magnitudes from 1e-6
// to below 1e21: 0.1, 1000.0001, 18446744073709551616, 1e+300, nan.
std::string NumberText(double number);

}  // namespace tessera::base
