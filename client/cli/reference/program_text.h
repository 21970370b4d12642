// ProgramText describes the program's commands and options as plain text, from the tables that `--help` prints. Shell
// completions and manual pages are generated from it.
#pragma once

#include <string>
#include <vector>

namespace tessera::client {

struct OptionText {
  std::vector<std::string> names;     // "-s", "--size"; the single name, without a dash, of a positional argument
  std::string value;                  // placeholder, such as "FILE" or "auto|serial|LAYOUT"; empty: a flag
  std::string help;                   // meaning and default
  std::string group;                  // heading in the help
  std::vector<std::string> excludes;  // names of options that cannot be combined with it
  bool positional = false;
  bool required = false;
};

struct CommandText {
  std::string name;
  std::string summary;
  std::string notes;  // text of the help below the options; empty: the default text
  std::vector<OptionText> options;
};

struct ExitCodeText {
  int code = 0;
  std::string meaning;
};

struct ProgramText {
  std::string name;
  std::string version;  // "tessera 1.2.3"
  std::string summary;
  std::vector<OptionText> options;  // options that precede the command
  std::vector<CommandText> commands;
  std::vector<ExitCodeText> exit_codes;
};

// The completions that a shell offers for a value, derived from its placeholder: parts between bars are literal words,
// and parts with a capital letter are names of something.
struct ValueChoices {
  std::vector<std::string> words;
  bool files = false;
  bool folders = false;
};

ValueChoices ChoicesOf(const std::string& value);

}  // namespace tessera::client
