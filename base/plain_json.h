// JSON as people write it. Boost.JSON 1.81 writes every number with a fraction in scientific notation (0 as 0E0, 4.5 as
// 4.5E0), which is sound JSON and read by no person. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace tessera::base {

// Every double in the fewest digits that read back as the same number, with a fraction or an exponent, so that readers
// which know whole numbers keep it apart from them: 0.0, 4.5, 1e+300. Null for one that is not finite, which JSON does
// not have.
std::string PlainJson(const boost::json::value& value);

}  // namespace tessera::base
