// The completion of `tessera` for a shell, as a script that the shell loads. Everything in it comes from the tables of
// options, so that a new option is completed as soon as it is there.
#pragma once

#include <string>

#include "client/cli/reference/program_text.h"

namespace tessera::client {

std::string BashCompletion(const ProgramText& program);
std::string ZshCompletion(const ProgramText& program);  // for a folder of `fpath`, or to be sourced
std::string FishCompletion(const ProgramText& program);

}  // namespace tessera::client
