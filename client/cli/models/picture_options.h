// PictureOptions has the pictures of an image as a user names them.
#pragma once

#include <string>
#include <vector>

namespace tessera::client {

struct PictureOptions {
  std::vector<std::string> images;  // paths
  std::string mask;                 // a path; empty: none
  std::string strength;             // a number; empty: the usual one

  bool given() const { return !images.empty() || !mask.empty() || !strength.empty(); }
};

}  // namespace tessera::client
