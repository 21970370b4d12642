#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files/atomic_file.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/reference/manual_page.h"

namespace tessera::client {
namespace {

struct ManualOptions {
  std::string command;
  std::string folder;
};

// Returns today's date, or the date that reproducible builds set.
std::string Date() {
  int64_t seconds = 0;
  const char* fixed = std::getenv("SOURCE_DATE_EPOCH");
  const bool given = fixed != nullptr && absl::SimpleAtoi(fixed, &seconds);
  return absl::FormatTime("%Y-%m-%d", given ? absl::FromUnixSeconds(seconds) : absl::Now(), absl::UTCTimeZone());
}

absl::Status WritePages(const ProgramText& program, const std::string& folder) {
  RETURN_IF_ERROR(base::MakeFolder(folder));
  const auto write = [&](const std::string& name, const std::string& page) {
    return base::WriteFileAtomically(absl::StrCat(folder, "/", name, ".1"), page, {.overwrite = true});
  };
  RETURN_IF_ERROR(write(program.name, ProgramPage(program, Date())));
  for (const CommandText& command : program.commands) {
    RETURN_IF_ERROR(write(absl::StrCat(program.name, "-", command.name), CommandPage(program, command, Date())));
  }
  return absl::OkStatus();
}

ExitCode Fail(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "tessera manual: %s\n", message.c_str());
  return code;
}

ExitCode Manual(const ProgramText& program, const ManualOptions& options) {
  if (!options.folder.empty()) {
    const absl::Status status = WritePages(program, options.folder);
    return status.ok() ? ExitCode::kOk : Fail(ExitCode::kOutput, std::string(status.message()));
  }
  std::string page = ProgramPage(program, Date());
  if (!options.command.empty()) {
    const auto command = std::find_if(program.commands.begin(), program.commands.end(),
                                      [&](const CommandText& known) { return known.name == options.command; });
    if (command == program.commands.end()) {
      return Fail(ExitCode::kUsage, absl::StrCat("there is no command '", options.command, "'"));
    }
    page = CommandPage(program, *command, Date());
  }
  std::fputs(page.c_str(), stdout);
  return std::fflush(stdout) == 0 ? ExitCode::kOk : ExitCode::kOutput;
}

}  // namespace

CommandRun AddManual(CLI::App& app) {
  auto options = std::make_shared<ManualOptions>();
  AddText(app, {"command", "Command that the page is about (default: the program)", "COMMAND"}, options->command);
  AddText(app, {"--out", "Write the page of the program and those of all commands into this folder", "DIR"},
          options->folder);
  SetFooter(app, "\nTo read one: tessera manual generate | man -l -");
  return [options, &app](Interrupts&) { return Manual(DescribeProgram(app), *options); };
}

}  // namespace tessera::client
