// Writes JSON with numbers in the usual notation. Boost.JSON 1.81 writes every number with a fraction in scientific
// notation (0 as 0E0, 4.5 as 4.5E0), which is valid JSON but hard to read. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace tessera::base {

// Writes every double with the fewest digits that read back as the same number, with a fraction or an exponent, so that
// readers that distinguish integers do not take it for one: 0.0, 4.5, 1e+300. A number that is not finite is written as
// null, because JSON cannot represent it.
std::string PlainJson(const boost::json::value& value);

}  // namespace tessera::base
