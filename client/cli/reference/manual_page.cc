#include "client/cli/reference/manual_page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera::client {
namespace {

struct Variable {
  const char* name;
  const char* meaning;
};

// The group of the options that every command has; it needs no subheading in its section.
constexpr char kPlainGroup[] = "Options";

constexpr Variable kEnvironment[] = {
    {"TESSERA_MODEL", "Model to use if no option names one."},
    {"TESSERA_MODELS", "Folders with models that are known by name, separated by colons."},
    {"HF_HUB_CACHE",
     "The cache of the Hugging Face hub, whose models are known by ORG/NAME (default: HF_HOME/hub, "
     "XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub)."},
    {"HF_TOKEN",
     "Access token of the hub, for models whose licence has to be accepted (default: that of `hf auth login`)."},
    {"HF_ENDPOINT", "Mirror of the hub from which models are downloaded (default: https://huggingface.co)."},
    {"TESSERA_CERTIFICATES", "Folder of the certificates of layouts."},
    {"TESSERA_LIBTORCH", "Folder that holds torch/, with the LibTorch that the worker loads."},
    {"TESSERA_WORKER", "Worker program (default: tessera-worker in the folder of this program)."},
};

// Escapes text for man(7): dashes stay typable, and no line begins with a control character. `a command` between
// backquotes becomes bold.
std::string Escaped(const std::string& text) {
  const std::string plain = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}});
  std::string marked;
  bool bold = false;
  for (const char c : plain) {
    if (c != '`') {
      marked += c;
      continue;
    }
    bold = !bold;
    marked += bold ? "\\fB" : "\\fR";
  }
  return marked.rfind('.', 0) == 0 ? absl::StrCat("\\&", marked) : marked;
}

// Makes each nonempty line a paragraph.
std::string Paragraphs(const std::string& text) {
  std::string page;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) {
    absl::StrAppend(&page, page.empty() ? "" : ".PP\n", Escaped(line), "\n");
  }
  return page;
}

// Wraps text to lines of at most 80 bytes where words allow it; man(7) fills them again.
std::string Wrapped(const std::string& page) {
  std::string wrapped;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(page, '\n'))) {
    if (absl::StartsWith(line, ".")) {
      absl::StrAppend(&wrapped, line, "\n");
      continue;
    }
    size_t length = 0;
    for (std::string word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
      if (length > 0 && length + 1 + word.size() > 80) {
        if (word[0] == '.') word = absl::StrCat("\\&", word);
        wrapped += '\n';
        length = 0;
      }
      absl::StrAppend(&wrapped, length > 0 ? " " : "", word);
      length += word.size() + (length > 0 ? 1 : 0);
    }
    wrapped += '\n';
  }
  wrapped.pop_back();
  return wrapped;
}

// Quotes text so that a heading of man(7) takes several words as one argument.
std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\\(dq"}}), "\"");
}

std::string Head(const ProgramText& program, const std::string& title, const std::string& date) {
  return absl::StrCat(".\\\" Made by `", program.name, " manual` from the tables of options.\n.TH ",
                      Quoted(Escaped(absl::AsciiStrToUpper(title))), " 1 ", Quoted(date), " ", Quoted(program.version),
                      " \"User Commands\"\n.SH NAME\n", Escaped(title), " \\- ");
}

// Formats names such as "FILE" in italics and literal words in bold.
std::string ValueText(const std::string& value) {
  std::vector<std::string> parts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, '|'))) {
    const bool word = std::none_of(part.begin(), part.end(), absl::ascii_isupper);
    parts.push_back(absl::StrCat(word ? "\\fB" : "\\fI", Escaped(part), "\\fR"));
  }
  return absl::StrJoin(parts, "|");
}

std::string OptionEntry(const OptionText& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    names.push_back(absl::StrCat(option.positional ? "\\fI" : "\\fB", Escaped(name), "\\fR"));
  }
  std::string entry = absl::StrCat(".TP\n", absl::StrJoin(names, ", "));
  if (!option.value.empty() && !option.positional) absl::StrAppend(&entry, " ", ValueText(option.value));
  absl::StrAppend(&entry, "\n", Escaped(option.help), option.help.empty() ? "" : ".");
  if (option.required && !option.positional) entry += " Required.";
  if (!option.excludes.empty()) {
    absl::StrAppend(&entry, " Not together with ", Escaped(absl::StrJoin(option.excludes, ", ")), ".");
  }
  return entry + "\n";
}

// Formats the options under their headings, in the order in which the headings first occur.
std::string OptionSections(const std::vector<OptionText>& options) {
  std::vector<std::string> groups;
  for (const OptionText& option : options) {
    if (!option.positional && std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  std::string page;
  for (const std::string& group : groups) {
    if (group != kPlainGroup) absl::StrAppend(&page, ".SS ", Quoted(Escaped(group)), "\n");
    for (const OptionText& option : options) {
      if (!option.positional && option.group == group) page += OptionEntry(option);
    }
  }
  return page;
}

std::string ExitStatus(const ProgramText& program) {
  std::string page = ".SH EXIT STATUS\n";
  for (const ExitCodeText& code : program.exit_codes) {
    absl::StrAppend(&page, ".TP\n\\fB", code.code, "\\fR\n", Escaped(code.meaning), "\n");
  }
  return page;
}

std::string Environment() {
  std::string page = ".SH ENVIRONMENT\n";
  for (const Variable& variable : kEnvironment) {
    absl::StrAppend(&page, ".TP\n\\fB", variable.name, "\\fR\n", Escaped(variable.meaning), "\n");
  }
  return page;
}

std::string LowerFirst(std::string text) {
  if (!text.empty()) text[0] = absl::ascii_tolower(text[0]);
  return text;
}

}  // namespace

std::string ProgramPage(const ProgramText& program, const std::string& date) {
  std::string page =
      absl::StrCat(Head(program, program.name, date), "images from text with diffusion transformers\n",
                   ".SH SYNOPSIS\n\\fB", program.name, "\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENT\\fR]\n",
                   ".SH DESCRIPTION\n", Escaped(program.summary), "\nEach command has its manual page, \\fB",
                   program.name, "\\-\\fICOMMAND\\fR(1).\n", ".SH COMMANDS\n");
  std::vector<std::string> pages;
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&page, ".TP\n\\fB", Escaped(command.name), "\\fR\n", Escaped(command.summary), ".\n");
    pages.push_back(absl::StrCat("\\fB", program.name, "\\-", Escaped(command.name), "\\fR(1)"));
  }
  absl::StrAppend(&page, ".SH OPTIONS\n", OptionSections(program.options), ExitStatus(program), Environment(),
                  ".SH SEE ALSO\n", absl::StrJoin(pages, ",\n"), "\n");
  return Wrapped(page);
}

std::string CommandPage(const ProgramText& program, const CommandText& command, const std::string& date) {
  std::string page = absl::StrCat(Head(program, absl::StrCat(program.name, "-", command.name), date),
                                  Escaped(LowerFirst(command.summary)), "\n.SH SYNOPSIS\n\\fB", program.name, " ",
                                  Escaped(command.name), "\\fR [\\fIOPTIONS\\fR]");
  std::string arguments;
  for (const OptionText& option : command.options) {
    if (!option.positional) continue;
    const std::string name = absl::StrCat("\\fI", Escaped(option.names[0]), "\\fR");
    absl::StrAppend(&page, " ", option.required ? name : absl::StrCat("[", name, "]"));
    arguments += OptionEntry(option);
  }
  absl::StrAppend(&page, "\n.SH DESCRIPTION\n", Escaped(command.summary), ".\n", arguments, ".SH OPTIONS\n",
                  OptionSections(command.options));
  if (!command.notes.empty()) absl::StrAppend(&page, ".SH NOTES\n", Paragraphs(command.notes));
  absl::StrAppend(&page, ExitStatus(program), Environment(), ".SH SEE ALSO\n\\fB", program.name, "\\fR(1)\n");
  return Wrapped(page);
}

}  // namespace tessera::client
