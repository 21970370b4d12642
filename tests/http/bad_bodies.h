// Reads bad_bodies.txt, the table of invalid requests in this folder.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {

struct BadBody {
  std::string field;
  std::string body;     // of POST /v1/images/generations
  int status = 0;       // of the response
  std::string message;  // required in the response, in addition to the field
};

// The path is relative to the root of the repository, where tests run.
inline std::vector<BadBody> ReadBadBodies() {
  std::vector<BadBody> bodies;
  std::ifstream table("tests/http/bad_bodies.txt");
  for (std::string line; std::getline(table, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> columns = absl::StrSplit(line, " | ");
    if (columns.size() != 4) {
      ADD_FAILURE() << "not a row of the table: " << line;
      continue;
    }
    for (const absl::string_view field : absl::StrSplit(columns[0], ' ')) {
      for (const absl::string_view value : absl::StrSplit(columns[1], " ; ")) {
        const char* rest = field == "prompt" ? "}" : ",\"prompt\":\"a\"}";
        bodies.push_back({.field = std::string(field),
                          .body = absl::StrCat("{\"", field, "\":", value, rest),
                          .status = std::stoi(columns[2]),
                          .message = columns[3]});
      }
    }
  }
  EXPECT_GE(bodies.size(), 400u);
  return bodies;
}

}  // namespace tessera
