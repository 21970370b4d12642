// tessera: the command line.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <string>

#include "client/command.h"

namespace tessera {
namespace {

struct Command {
  const char* name;
  const char* summary;
  CommandRun (*add)(CLI::App& app);
};

constexpr Command kCommands[] = {
    {"generate", "Make images from a prompt", AddGenerate},
    {"inspect", "Show what a model or an image holds", AddInspect},
    {"replay", "Make an image again from its own parameters and compare the two", AddReplay},
    {"models", "List the models that are known by name", AddModels},
    {"bench", "Measure how fast a model makes images on this machine", AddBench},
};

constexpr char kFooter[] =
    "\nExit codes: 0 done, 1 internal error, 2 illegal option or value, 3 model cannot be read,\n"
    "4 device or memory not available, 5 image cannot be written, 6 worker died, 7 replay differs, 130 interrupted.";

// An empty value is a mistake of a script, except where text may be empty.
void RefuseEmptyValues(CLI::App& app) {
  const CLI::Validator not_empty([](std::string& value) { return value.empty() ? "the value is empty" : ""; }, "");
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (name != "prompt" && name != "--negative") option->check(not_empty);
  }
}

ExitCode Main(int argc, char** argv) {
  Interrupts interrupts;
  CLI::App app("Tessera makes images from text with diffusion transformers.", "tessera");
  app.set_version_flag("--version", kProgramVersion);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  std::map<const CLI::App*, CommandRun> runs;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    runs[sub] = command.add(*sub);
    RefuseEmptyValues(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Zero for --help and --version, which CLI11 treats as errors too.
    return app.exit(error) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  }
  return runs.at(app.get_subcommands().front())(interrupts);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  // A file that grows beyond the process's limit is an error to report, like a full disk.
  signal(SIGXFSZ, SIG_IGN);
  try {
    return static_cast<int>(tessera::Main(argc, argv));
  } catch (const std::bad_alloc&) {
    std::fputs("tessera: out of memory\n", stderr);
    return static_cast<int>(tessera::ExitCode::kDevice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: internal error: %s\n", error.what());
    return static_cast<int>(tessera::ExitCode::kInternal);
  }
}
