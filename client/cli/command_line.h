// Defines commands and their options. Values stay text as typed; option_text.h and the validator interpret them. Only
// this header's source file includes CLI11, which adds ten seconds to the compilation of every file that uses it.
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
  const char* help;   // meaning and default
  // The value's placeholder in the help. Alternatives are separated by bars: words in small letters are typed
  // literally, capitalized names stand for something that program_text.h maps to shell completions. Null: TEXT.
  const char* type = nullptr;
  bool required = false;
  bool may_be_empty = false;       // otherwise an empty value, usually a mistake in a script, is refused
  const char* excludes = nullptr;  // name of an option declared earlier that cannot be combined with this one
  std::string (*problem)(const std::string& value) =
      nullptr;  // returns an error message for a value; empty if it is valid
};

// The values must live as long as `app`. Values that are not typed are not changed.
void AddText(CLI::App& app, const TextOption& option, std::string& value);
void AddText(CLI::App& app, const TextOption& option, std::optional<std::string>& value);
// Adds an option that may be given several times, each time with one value.
void AddTexts(CLI::App& app, const TextOption& option, std::vector<std::string>& values);
void AddFlag(CLI::App& app, const char* names, const char* help, bool& value);
void AddSwitch(CLI::App& app, const char* name, const char* help, std::optional<bool>& value);  // --NAME and --no-NAME

void BeginGroup(CLI::App& app, const char* heading);  // heading in the help for the options added from now on
void SetFooter(CLI::App& app, const char* text);      // of the help text

struct Command {
  const char* name;
  const char* summary;
  CommandRun (*add)(CLI::App& app);
};

// Runs the command that was typed, or reports what is wrong.
ExitCode RunCommandLine(absl::Span<const Command> commands, int argc, char** argv, Interrupts& interrupts);

// Describes the whole program, of which `command` is one command: all commands and their options.
ProgramText DescribeProgram(const CLI::App& command);

}  // namespace tessera::client
