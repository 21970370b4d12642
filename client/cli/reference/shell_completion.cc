#include "client/cli/reference/shell_completion.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace tessera::client {
namespace {

bool IsLong(const std::string& name) { return absl::StartsWith(name, "--"); }

std::vector<std::string> OptionNames(const std::vector<OptionText>& options) {
  std::vector<std::string> names;
  for (const OptionText& option : options) {
    if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// Quotes text for bash and zsh.
std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Returns the argument of _tessera_offer for a value.
std::string BashOffer(const std::string& value) {
  const ValueChoices choices = ChoicesOf(value);
  return absl::StrCat(choices.files     ? "file"
                      : choices.folders ? "folder"
                                        : "-",
                      " ", ShellQuoted(absl::StrJoin(choices.words, " ")));
}

constexpr char kBashHead[] = R"(# bash completion for tessera, made by `tessera completion bash`.

# _tessera_offer file|folder|- WORDS: what the word under the cursor can become.
_tessera_offer() {
  [[ $1 == - ]] || compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(
    compgen -W "$2" -- "$current"
    [[ $1 != file ]] || compgen -f -- "$current"
    [[ $1 != folder ]] || compgen -d -- "$current"
  )
}

_tessera() {
  local current=${COMP_WORDS[COMP_CWORD]} previous= command=${COMP_WORDS[1]-}
  COMPREPLY=()
  if ((COMP_CWORD > 0)); then previous=${COMP_WORDS[COMP_CWORD - 1]}; fi
  # --option=value is three words.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]] && ((COMP_CWORD > 1)); then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";

// Escapes text within the brackets of an _arguments specification.
std::string ZshHelp(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshMessage(const std::string& text) { return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {":", "\\:"}}); }

std::string ZshAction(const std::string& value) {
  const ValueChoices choices = ChoicesOf(value);
  if (choices.files) return "_files";
  if (choices.folders) return "_files -/";
  if (choices.words.empty()) return " ";
  return absl::StrCat("(", ZshMessage(absl::StrJoin(choices.words, " ")), ")");
}

// Appends one specification per name; at most one of the names may be given. `positionals` counts those of the command.
void AppendZshOption(const OptionText& option, int& positionals, std::string& script) {
  constexpr char kIndent[] = " \\\n          ";
  if (option.positional) {
    const std::string spec = absl::StrCat(++positionals, option.required ? ":" : "::", ZshMessage(option.names[0]), ":",
                                          ZshAction(option.value));
    absl::StrAppend(&script, kIndent, ShellQuoted(spec));
    return;
  }
  std::vector<std::string> others = option.names;
  others.insert(others.end(), option.excludes.begin(), option.excludes.end());
  for (const std::string& name : option.names) {
    std::string spec = absl::StrCat("(", absl::StrJoin(others, " "), ")", name);
    if (!option.value.empty()) spec += IsLong(name) ? "=" : "+";
    absl::StrAppend(&spec, "[", ZshHelp(option.help), "]");
    if (!option.value.empty()) absl::StrAppend(&spec, ":", ZshMessage(option.value), ":", ZshAction(option.value));
    absl::StrAppend(&script, kIndent, ShellQuoted(spec));
  }
}

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

void AppendFishOption(const OptionText& option, const std::string& condition, std::string& script) {
  const ValueChoices choices = ChoicesOf(option.value);
  std::string line = absl::StrCat("complete -c tessera -n ", FishQuoted(condition));
  if (option.positional) {
    if (choices.words.empty() && !choices.files && !choices.folders) return;
  } else {
    for (const std::string& name : option.names) {
      absl::StrAppend(&line, IsLong(name) ? " -l " : " -s ", absl::StripPrefix(absl::StripPrefix(name, "-"), "-"));
    }
    if (!option.value.empty()) line += choices.files ? " -r" : " -x";
  }
  if (choices.files) line += " -F";
  std::vector<std::string> offered = choices.words;
  if (choices.folders) offered.emplace_back("(__fish_complete_directories (commandline -ct) '')");
  if (!offered.empty()) absl::StrAppend(&line, " -a ", FishQuoted(absl::StrJoin(offered, " ")));
  absl::StrAppend(&script, line, " -d ", FishQuoted(option.help), "\n");
}

}  // namespace

std::string BashCompletion(const ProgramText& program) {
  std::string script = kBashHead;
  std::vector<std::string> first = OptionNames(program.options);
  for (const CommandText& command : program.commands) first.push_back(command.name);
  absl::StrAppend(&script, "  if ((COMP_CWORD <= 1)); then\n    _tessera_offer - ",
                  ShellQuoted(absl::StrJoin(first, " ")), "\n    return\n  fi\n  case $command:$previous in\n");
  for (const CommandText& command : program.commands) {
    for (const OptionText& option : command.options) {
      if (option.positional || option.value.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(absl::StrCat(command.name, ":", name));
      absl::StrAppend(&script, "    ", absl::StrJoin(patterns, " | "), ") _tessera_offer ", BashOffer(option.value),
                      "; return ;;\n");
    }
  }
  absl::StrAppend(&script, "  esac\n  if [[ $current == -* ]]; then\n    case $command in\n");
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&script, "      ", command.name, ") _tessera_offer - ",
                    ShellQuoted(absl::StrJoin(OptionNames(command.options), " ")), " ;;\n");
  }
  absl::StrAppend(&script, "    esac\n    return\n  fi\n  case $command in\n");
  for (const CommandText& command : program.commands) {
    std::vector<std::string> offers;
    for (const OptionText& option : command.options) {
      if (option.positional) offers.push_back(absl::StrCat("_tessera_offer ", BashOffer(option.value)));
    }
    if (offers.empty()) continue;
    // A positional after the first one follows it, without options in between.
    std::string places;
    for (size_t i = 0; i + 1 < offers.size(); ++i) absl::StrAppend(&places, i + 2, ") ", offers[i], " ;; ");
    absl::StrAppend(
        &script, "    ", command.name, ") ",
        places.empty() ? offers[0] : absl::StrCat("case $COMP_CWORD in ", places, "*) ", offers.back(), " ;; esac"),
        " ;;\n");
  }
  absl::StrAppend(&script, "  esac\n}\n\ncomplete -F _tessera tessera\n");
  return script;
}

std::string ZshCompletion(const ProgramText& program) {
  std::string script =
      "#compdef tessera\n# zsh completion for tessera, made by `tessera completion zsh`.\n\n"
      "_tessera() {\n  local curcontext=$curcontext state line\n  typeset -A opt_args\n  _arguments -s -S -C";
  int positionals = 0;
  for (const OptionText& option : program.options) AppendZshOption(option, positionals, script);
  absl::StrAppend(&script, " \\\n          '1:command:->command' '*::argument:->argument'\n",
                  "  case $state in\n    command)\n      local -a commands=(\n");
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&script, "        ", ShellQuoted(absl::StrCat(command.name, ":", ZshMessage(command.summary))),
                    "\n");
  }
  absl::StrAppend(&script,
                  "      )\n      _describe -t commands command commands\n      ;;\n"
                  "    argument)\n      case $words[1] in\n");
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&script, "        ", command.name, ")\n          _arguments -s -S");
    positionals = 0;
    for (const OptionText& option : command.options) AppendZshOption(option, positionals, script);
    absl::StrAppend(&script, "\n          ;;\n");
  }
  absl::StrAppend(&script, "      esac\n      ;;\n  esac\n}\n\n",
                  "if [[ $funcstack[1] == _tessera ]]; then _tessera \"$@\"; else compdef _tessera tessera; fi\n");
  return script;
}

std::string FishCompletion(const ProgramText& program) {
  std::string script = R"(# fish completion for tessera, made by `tessera completion fish`.

# Whether this command is the one that is typed; without an argument, whether none is typed yet.
function __tessera_command
    set -l words (commandline -opc)
    if not set -q argv[1]
        test (count $words) -eq 1
        return
    end
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end

complete -c tessera -e
complete -c tessera -f
)";
  for (const OptionText& option : program.options) AppendFishOption(option, "__tessera_command", script);
  for (const CommandText& command : program.commands) {
    absl::StrAppend(&script, "complete -c tessera -n __tessera_command -a ", command.name, " -d ",
                    FishQuoted(command.summary), "\n");
  }
  for (const CommandText& command : program.commands) {
    for (const OptionText& option : command.options) {
      AppendFishOption(option, absl::StrCat("__tessera_command ", command.name), script);
    }
  }
  return script;
}

}  // namespace tessera::client
