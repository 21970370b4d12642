#include "client/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text/nearest_name.h"
#include "server/api/generation_request.h"
#include "server/metadata/image_metadata.h"

namespace tessera::client {
namespace {

CLI::Option* Declare(CLI::App& app, const TextOption& text, const CLI::callback_t& take) {
  CLI::Option* option = app.add_option(text.names, take, text.help);
  option->type_name(text.type == nullptr ? "TEXT" : text.type)->required(text.required);
  if (text.excludes != nullptr) option->excludes(app.get_option(text.excludes));
  if (!text.may_be_empty) {
    option->check(CLI::Validator([](std::string& typed) { return typed.empty() ? "the value is empty" : ""; }, ""));
  }
  if (text.problem != nullptr) {
    option->check(CLI::Validator([problem = text.problem](std::string& typed) { return problem(typed); }, ""));
  }
  return option;
}

template <typename Value>
void DeclareOne(CLI::App& app, const TextOption& text, Value& value) {
  Declare(app, text, [&value](const CLI::results_t& typed) {
    value = typed[0];
    return true;
  });
}

// Returns "; did you mean 'generate'?", or an empty string.
std::string Suggestion(const std::string& typed, const std::vector<std::string>& names) {
  const std::string nearest = base::NearestName(typed, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

// What users of other programs type, and what Tessera has for it.
struct ForeignCommand {
  const char* typed;
  const char* advice;
};

constexpr ForeignCommand kForeignCommands[] = {
    {"run", "make an image with 'tessera generate', or serve a model with 'tessera serve'"},
    {"list", "'tessera models' lists the models, 'tessera jobs' the jobs of a server"},
    {"ls", "'tessera models' lists the models, 'tessera jobs' the jobs of a server"},
    {"ps", "'tessera jobs' lists the jobs of a server"},
    {"rm", "delete the model's folder, which 'tessera models' lists"},
    {"remove", "delete the model's folder, which 'tessera models' lists"},
    {"download", "'tessera pull' downloads a model"},
    {"show", "'tessera inspect' shows a model or an image"},
    {"stop", "'tessera cancel' stops a job of a server"},
    {"start", "'tessera serve' starts a server"},
    {"help", "'tessera --help' lists the commands"},
};

// Returns an error message for an unknown command; empty if the command is known or none was typed.
std::string UnknownCommand(absl::Span<const Command> commands, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return "";
  const std::string_view typed = argv[1];
  const auto* foreign = std::ranges::find(kForeignCommands, typed, &ForeignCommand::typed);
  if (foreign != std::end(kForeignCommands)) {
    return absl::StrCat("unknown command ", server::QuotedValue(argv[1]), "; ", foreign->advice);
  }
  return absl::StrCat("unknown command ", server::QuotedValue(argv[1]), Suggestion(argv[1], names));
}

// Returns an error message for an argument that `app` does not know; empty if it knows all. An unknown option is
// reported before any other argument, because what follows it may be misread.
std::string UnknownArgument(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  for (const std::string& extra : extras) {
    if (extra.size() < 2 || extra[0] != '-' || extra == "--") continue;
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    const std::string name = extra.substr(0, extra.find('='));
    return absl::StrCat("unknown option ", server::QuotedValue(name), Suggestion(name, names));
  }
  if (extras.empty()) return "";
  return absl::StrCat("unexpected argument ", server::QuotedValue(extras[0]),
                      "; put a text of several words in quotation marks");
}

// The footer of every help text that has no footer yet.
std::string ExitCodesFooter() {
  std::string footer = "\nExit codes:";
  size_t line = 0;
  for (const ExitMeaning& meaning : kExitMeanings) {
    std::string part = absl::StrCat(" ", static_cast<int>(meaning.code), " ", meaning.text, ",");
    if (footer.size() - line + part.size() > 110) {
      line = footer.size();
      part[0] = '\n';
    }
    footer += part;
  }
  footer.back() = '.';
  return footer;
}

OptionText Describe(const CLI::Option& option) {
  const auto names = [](const CLI::Option& of) {
    std::vector<std::string> all;
    for (const std::string& name : of.get_snames()) all.push_back("-" + name);
    for (const std::string& name : of.get_lnames()) all.push_back("--" + name);
    return all;
  };
  OptionText text = {.names = names(option),
                     .help = option.get_description(),
                     .group = option.get_group(),
                     .positional = option.get_positional(),
                     .required = option.get_required()};
  if (text.positional) text.names = {option.get_name(/*positional=*/true)};
  if (option.get_items_expected_max() > 0) text.value = option.get_type_name();
  for (const CLI::Option* excluded : option.get_excludes()) {
    for (const std::string& name : names(*excluded)) text.excludes.push_back(name);
  }
  std::sort(text.excludes.begin(), text.excludes.end());
  return text;
}

std::vector<OptionText> DescribeOptions(const CLI::App& app) {
  std::vector<OptionText> options;
  for (const CLI::Option* option : app.get_options()) options.push_back(Describe(*option));
  return options;
}

}  // namespace

void AddText(CLI::App& app, const TextOption& option, std::string& value) { DeclareOne(app, option, value); }
void AddText(CLI::App& app, const TextOption& option, std::optional<std::string>& value) {
  DeclareOne(app, option, value);
}

void AddTexts(CLI::App& app, const TextOption& option, std::vector<std::string>& values) {
  const auto take = [&values](const CLI::results_t& typed) {
    values = typed;
    return true;
  };
  Declare(app, option, take)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddFlag(CLI::App& app, const char* names, const char* help, bool& value) {
  app.add_flag_callback(
      names, [&value] { value = true; }, help);
}

void AddSwitch(CLI::App& app, const char* name, const char* help, std::optional<bool>& value) {
  CLI::Option* on = app.add_flag_callback(
      std::string("--") + name, [&value] { value = true; }, help);
  app.add_flag_callback(
         std::string("--no-") + name, [&value] { value = false; }, "The opposite")
      ->excludes(on);
}

void BeginGroup(CLI::App& app, const char* heading) { app.option_defaults()->group(heading); }

void SetFooter(CLI::App& app, const char* text) { app.footer(text); }

ProgramText DescribeProgram(const CLI::App& command) {
  const CLI::App& app = *command.get_parent();
  ProgramText program = {.name = app.get_name(),
                         .version = server::kProgramVersion,
                         .summary = app.get_description(),
                         .options = DescribeOptions(app)};
  for (const CLI::App* sub : app.get_subcommands(/*filter=*/[](const CLI::App*) { return true; })) {
    CommandText text = {.name = sub->get_name(), .summary = sub->get_description(), .options = DescribeOptions(*sub)};
    if (sub->get_footer() != app.get_footer()) {
      text.notes = std::string(absl::StripAsciiWhitespace(sub->get_footer()));
    }
    program.commands.push_back(std::move(text));
  }
  for (const ExitMeaning& meaning : kExitMeanings) {
    program.exit_codes.push_back({.code = static_cast<int>(meaning.code), .meaning = meaning.text});
  }
  return program;
}

ExitCode RunCommandLine(absl::Span<const Command> commands, int argc, char** argv, Interrupts& interrupts) {
  CLI::App app("Tessera makes images from text with diffusion transformers.", "tessera");
  app.set_version_flag("--version", server::kProgramVersion);
  app.footer(ExitCodesFooter());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  std::map<const CLI::App*, CommandRun> runs;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    runs[sub] = command.add(*sub);
  }
  const auto refuse = [](const std::string& command, const std::string& problem) {
    std::fprintf(stderr, "%s: %s\nRun with --help for more information.\n", command.c_str(), problem.c_str());
    return ExitCode::kUsage;
  };
  if (const std::string unknown = UnknownCommand(commands, argc, argv); !unknown.empty()) {
    return refuse("tessera", unknown);
  }
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return ExitCode::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The exit code is zero for --help and --version, which CLI11 also treats as errors.
    if (error.get_exit_code() == 0) return app.exit(error) == 0 ? ExitCode::kOk : ExitCode::kUsage;
    const std::vector<CLI::App*> typed = app.get_subcommands();
    const CLI::App& command = typed.empty() ? app : *typed.front();
    if (const std::string unknown = UnknownArgument(command); !unknown.empty()) {
      return refuse(typed.empty() ? "tessera" : absl::StrCat("tessera ", command.get_name()), unknown);
    }
    app.exit(error);
    return ExitCode::kUsage;
  }
  return runs.at(app.get_subcommands().front())(interrupts);
}

}  // namespace tessera::client
