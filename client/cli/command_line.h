// Commands and their options. Values stay text as typed: what they mean is said by option_text.h and the
// validator. Only this header's source includes CLI11, which costs ten seconds in every file that uses it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/cli/command.h"
#include "client/cli/reference/program_text.h"

namespace tessera::client {

struct TextOption {
  const char* names;  // "-s,--size"; without a dash it is positional
  const char* help;   // what it is, and the default
  // What the help shows for the value: words that are typed as they are, in small letters, and names of something,
  // which program_text.h knows for shells, with bars between them; null: TEXT.
  const char* type = nullptr;
  bool required = false;
  bool may_be_empty = false;       // else an empty value, a mistake of a script, is refused
  const char* excludes = nullptr;  // the name of one declared before that cannot be given as well
  std::string (*problem)(const std::string& value) = nullptr;  // what is wrong with a value; empty: nothing
};

// The values must live as long as `app`. Those that are not typed stay as they are.
void AddText(CLI::App& app, const TextOption& option, std::string& value);
void AddText(CLI::App& app, const TextOption& option, std::optional<std::string>& value);
// One that may be given several times, each time with one value.
void AddTexts(CLI::App& app, const TextOption& option, std::vector<std::string>& values);
void AddFlag(CLI::App& app, const char* names, const char* help, bool& value);
void AddSwitch(CLI::App& app, const char* name, const char* help, std::optional<bool>& value);  // --NAME and --no-NAME

void BeginGroup(CLI::App& app, const char* heading);  // under which the help shows what is added from now on
void SetFooter(CLI::App& app, const char* text);      // of the help

struct Command {
  const char* name;
  const char* summary;
  CommandRun (*add)(CLI::App& app);
};

// Runs the one of `commands` that is typed; says what is wrong where none is.
ExitCode RunCommandLine(absl::Span<const Command> commands, int argc, char** argv, Interrupts& interrupts);

// All commands, of which `command` is one, and their options.
ProgramText DescribeProgram(const CLI::App& command);

}  // namespace tessera::client
