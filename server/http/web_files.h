// The files of the page for browsers (server/web/), which the build embeds into the program.
#pragma once

#include <string>
#include <vector>

namespace tessera::server {

struct WebFile {
  std::string name;  // without a folder: "index.html"
  std::string content;
};

const std::vector<WebFile>& WebFiles();

}  // namespace tessera::server
