// Manages standard input, output and error from the beginning to the end of a program.
#pragma once

#include <string_view>

namespace tessera::base {

// To be called at the beginning of a program: files opened later would get the numbers of closed standard streams and
// receive their output. Closed streams become /dev/null; standard output is opened so that it cannot be written to, and
// EndProcess reports output that is lost because of that.
void OpenStandardStreams();

// Writes a line to standard output at once. A missing reader is not an error.
void Announce(std::string_view line);

// Flushes the streams and ends the process without running the destructors of static objects: those of LibTorch and
// gRPC alone take a tenth of a second, during which a caller waits for the process, and the kernel reclaims their
// resources anyway. Handlers of std::at_quick_exit run. A build with a sanitizer ends normally, so that the sanitizer
// can report. If some output to standard output was lost, the exit code is `lost` in place of 0, and a line on standard
// error reports it. Output is not lost if its reader has closed the pipe.
[[noreturn]] void EndProcess(int code, int lost);

}  // namespace tessera::base
