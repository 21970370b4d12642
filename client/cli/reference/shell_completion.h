// Generates the shell scripts that complete `tessera` commands. Their content comes from the option tables, so that a
// new option is completed automatically.
#pragma once

#include <string>

#include "client/cli/reference/program_text.h"

namespace tessera::client {

std::string BashCompletion(const ProgramText& program);
std::string ZshCompletion(const ProgramText& program);  // for a folder in `fpath`, or to be sourced
std::string FishCompletion(const ProgramText& program);

}  // namespace tessera::client
