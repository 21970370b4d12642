// Where this user's files are that are kept between runs (XDG Base Directory Specification).
#pragma once

#include <string>

namespace tessera::base {

// Returns $XDG_DATA_HOME/tessera, or ~/.local/share/tessera. The folder need not exist.
std::string UserDataFolder();

}  // namespace tessera::base
