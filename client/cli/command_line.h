// Commands and their options. Values stay text as typed: what they mean is said by option_text.h and the
// validator. Only this header's source includes CLI11, which costs ten seconds in every file that uses it.
#pragma once

#include <optional>
#include <string>

#include "absl/types/span.h"
#include "client/cli/command.h"

namespace tessera::client {

struct TextOption {
  const char* names;           // "-s,--size"; without a dash it is positional
  const char* help;            // what it is, and the default
  const char* type = nullptr;  // what the help shows for the value; null: TEXT
  bool required = false;
  bool may_be_empty = false;       // else an empty value, a mistake of a script, is refused
  const char* excludes = nullptr;  // the name of one declared before that cannot be given as well
  std::string (*problem)(const std::string& value) = nullptr;  // what is wrong with a value; empty: nothing
};

// The values must live as long as `app`. Those that are not typed stay as they are.
void AddText(CLI::App& app, const TextOption& option, std::string& value);
void AddText(CLI::App& app, const TextOption& option, std::optional<std::string>& value);
void AddFlag(CLI::App& app, const char* names, const char* help, bool& value);
void AddSwitch(CLI::App& app, const char* name, const char* help, std::optional<bool>& value);  // --NAME and --no-NAME

void SetFooter(CLI::App& app, const char* text);  // of the help

struct Command {
  const char* name;
  const char* summary;
  CommandRun (*add)(CLI::App& app);
};

// Runs the one of `commands` that is typed; says what is wrong where none is. `footer` ends the help.
ExitCode RunCommandLine(absl::Span<const Command> commands, const char* footer, int argc, char** argv,
                        Interrupts& interrupts);

}  // namespace tessera::client
