// Prints JSON for programs that read the standard output.
#pragma once

#include <boost/json.hpp>
#include <cstdio>
#include <string>

#include "base/json/plain_json.h"
#include "base/text/utf8.h"

namespace tessera::client {

// Replaces invalid UTF-8: paths and messages may hold any bytes, but JSON must be UTF-8.
inline boost::json::string JsonText(const std::string& text) {
  return boost::json::string(base::ReplaceInvalidUtf8(text).c_str());
}

// Prints one line and flushes it.
inline void PrintJsonLine(const boost::json::object& object) {
  const std::string line = base::PlainJson(object) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace tessera::client
