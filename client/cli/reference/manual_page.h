// Generates manual pages in the language of man(7) from the option tables: one for the program, tessera(1), and one for
// each command, such as tessera-generate(1).
#pragma once

#include <string>

#include "client/cli/reference/program_text.h"

namespace tessera::client {

// `date`, YYYY-MM-DD, is printed at the foot of the page.
std::string ProgramPage(const ProgramText& program, const std::string& date);
std::string CommandPage(const ProgramText& program, const CommandText& command, const std::string& date);

}  // namespace tessera::client
