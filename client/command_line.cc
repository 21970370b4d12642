#include "client/command_line.h"

#include <CLI/CLI.hpp>
#include <map>

#include "server/image_metadata.h"

namespace tessera {
namespace {

template <typename Value>
void Declare(CLI::App& app, const TextOption& text, Value& value) {
  const auto take = [&value](const CLI::results_t& typed) {
    value = typed[0];
    return true;
  };
  CLI::Option* option = app.add_option(text.names, take, text.help);
  option->type_name(text.type == nullptr ? "TEXT" : text.type)->required(text.required);
  if (text.excludes != nullptr) option->excludes(app.get_option(text.excludes));
  if (!text.may_be_empty) {
    option->check(CLI::Validator([](std::string& typed) { return typed.empty() ? "the value is empty" : ""; }, ""));
  }
}

}  // namespace

void AddText(CLI::App& app, const TextOption& option, std::string& value) { Declare(app, option, value); }
void AddText(CLI::App& app, const TextOption& option, std::optional<std::string>& value) {
  Declare(app, option, value);
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

void SetFooter(CLI::App& app, const char* text) { app.footer(text); }

ExitCode RunCommandLine(absl::Span<const Command> commands, const char* footer, int argc, char** argv,
                        Interrupts& interrupts) {
  CLI::App app("Tessera makes images from text with diffusion transformers.", "tessera");
  app.set_version_flag("--version", kProgramVersion);
  app.footer(footer);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  std::map<const CLI::App*, CommandRun> runs;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    runs[sub] = command.add(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Zero for --help and --version, which CLI11 treats as errors too.
    return app.exit(error) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  }
  return runs.at(app.get_subcommands().front())(interrupts);
}

}  // namespace tessera
