// Standard input, output and errors from the first to the last line of a program.
#pragma once

#include <string_view>

namespace tessera::base {

// For the beginning of a program: what it opens later would take the numbers of standard streams that were closed, and
// be written to as such. They become /dev/null, standard output one that cannot be written to: EndProcess says so
// where something would have been written.
void OpenStandardStreams();

// Writes a line on standard output at once. That it has no reader is no error.
void Announce(std::string_view line);

// Writes what streams still hold and ends the process, without the destructors of static objects: those of LibTorch and
// gRPC alone take a tenth of a second, in which a caller waits for the process, and all they give back the kernel takes
// by itself. Handlers of std::at_quick_exit run. A build with a sanitizer ends as usual, for what its own handlers
// find. Where not all that was written to standard output was taken, the code is `lost` in place of 0, and standard
// error has a line about it. A reader that has gone has what it wanted.
[[noreturn]] void EndProcess(int code, int lost);

}  // namespace tessera::base
