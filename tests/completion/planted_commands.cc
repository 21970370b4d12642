// This program has an option that `tessera` does not have. Everything generated from its tables must contain the
// option.
#include "client/cli/command_line.h"

namespace tessera::client {
namespace {

CommandRun AddPaint(CLI::App& app) {
  static std::string value, file, folder, subject;
  static bool flag = false;
  AddText(app, {"subject", "What is painted; it's \"free\" [text]: any", "IMAGE"}, subject);
  BeginGroup(app, "Colours");
  AddText(app, {"-p,--planted-words", "One of some words: don't mind [these] $signs `true`", "ochre|umber|N"}, value);
  AddText(app, {"--planted-file", "A file", "FILE"}, file);
  AddText(app, {"--planted-folder", "A folder", "DIR"}, folder);
  AddFlag(app, "--planted-flag", "A flag", flag);
  return [](Interrupts&) { return ExitCode::kOk; };
}

constexpr Command kCommands[] = {
    {"paint", "Paint: it's a planted command", AddPaint},
    {"completion", "Print what completes commands and options in a shell", AddCompletion},
    {"manual", "Print the manual page of the program or of a command", AddManual},
};

}  // namespace
}  // namespace tessera::client

int main(int argc, char** argv) {
  tessera::client::Interrupts interrupts;
  return static_cast<int>(tessera::client::RunCommandLine(tessera::client::kCommands, argc, argv, interrupts));
}
