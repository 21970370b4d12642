// What the program takes, as plain text: the tables from which `--help` is printed. Completions of shells and manual
// pages are made of it.
#pragma once

#include <string>
#include <vector>

namespace tessera::client {

struct OptionText {
  std::vector<std::string> names;  // "-s", "--size"; of a positional argument its one name, without a dash
  std::string value;               // what stands for the value, such as "FILE" or "auto|serial|LAYOUT"; empty: a flag
  std::string help;                // what it is, and the default
  std::string group;               // the heading under which it stands
  std::vector<std::string> excludes;  // names of options that cannot be given as well
  bool positional = false;
  bool required = false;
};

struct CommandText {
  std::string name;
  std::string summary;
  std::string notes;  // what the help says below the options; empty: nothing of its own
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
  std::vector<OptionText> options;  // before the command
  std::vector<CommandText> commands;
  std::vector<ExitCodeText> exit_codes;
};

// What a shell can offer for a value, by what stands for it: parts between bars are words to be typed as they are,
// and those with a capital letter are names of something.
struct ValueChoices {
  std::vector<std::string> words;
  bool files = false;
  bool folders = false;
};

ValueChoices ChoicesOf(const std::string& value);

}  // namespace tessera::client
