// Implements `tessera backup` and `tessera restore`, for the data folder of a server.
#include "server/backup/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files/atomic_file.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "server/backup/restore.h"
#include "server/config/server_config.h"

namespace tessera::client {
namespace {

constexpr char kStandardStream[] = "-";

struct BackupCommandOptions {
  std::string archive;
  std::string config, data_folder;
  bool files_only = false, overwrite = false, json = false;
};

struct RestoreCommandOptions {
  std::string archive, to;
  bool replace = false, json = false;
};

// Prints what an archive has: to people on standard error if the archive itself goes to standard output.
void PrintContents(const char* event, const server::BackupManifest& manifest, const std::string& moved_to, bool json,
                   std::FILE* people) {
  uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  if (json) {
    PrintJsonLine({{"event", event},
                   {"files", manifest.files.size()},
                   {"bytes", bytes},
                   {"schema", manifest.schema},
                   {"lost_images", manifest.lost_images},
                   {"created_at", manifest.created_s},
                   {"moved_to", moved_to.empty() ? boost::json::value() : boost::json::value(JsonText(moved_to))}});
    return;
  }
  std::fprintf(people, "%zu files, %s%s\n", manifest.files.size(), base::ByteText(bytes).c_str(),
               manifest.schema == 0 ? ", without jobs" : "");
  if (!moved_to.empty()) std::fprintf(people, "what it replaced is in %s\n", moved_to.c_str());
  if (manifest.lost_images > 0) {
    std::fprintf(stderr, "warning: %lld images of ended jobs were missing in the data folder\n",
                 static_cast<long long>(manifest.lost_images));
  }
}

absl::StatusOr<server::BackupOptions> OptionsOf(const BackupCommandOptions& options) {
  server::BackupOptions backup = {.files_only = options.files_only, .now_s = absl::ToUnixSeconds(absl::Now())};
  server::ServerConfig config;
  if (!options.config.empty()) {
    ASSIGN_OR_RETURN(config, server::LoadServerConfig(options.config));
  }
  if (!config.store.dsn.empty() && !options.files_only) {
    return absl::FailedPreconditionError(
        "the jobs of this server are in PostgreSQL: dump them with pg_dump, then back up the images and adapters with "
        "--files-only");
  }
  backup.data_folder = options.data_folder.empty() ? config.data_folder : options.data_folder;
  return backup;
}

// A failure of the disk is one of the output, and any other is one of the options.
absl::Status AtStageOf(const absl::Status& status) {
  const bool is_disk = absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  return At(is_disk ? Stage::kOutput : Stage::kOptions, status);
}

// Returns an error once the user has interrupted the command.
absl::Status CheckInterrupt(const Interrupts& interrupts) {
  return interrupts.requested() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::StatusOr<ExitCode> RunBackup(const BackupCommandOptions& options, Interrupts& interrupts) {
  const bool to_stdout = options.archive == kStandardStream;
  if (to_stdout && options.json) return absl::InvalidArgumentError("--json needs an archive other than -");
  if (to_stdout && isatty(STDOUT_FILENO) != 0) {
    return absl::InvalidArgumentError("the archive would go to a terminal; redirect standard output to a file");
  }
  ASSIGN_OR_RETURN(const server::BackupOptions backup, OptionsOf(options));
  if (to_stdout) {
    const auto sink = [&](std::string_view bytes) {
      RETURN_IF_ERROR(CheckInterrupt(interrupts));
      const int error = base::WriteBytes(STDOUT_FILENO, bytes);
      if (error == 0) return absl::OkStatus();
      return At(Stage::kOutput, absl::UnavailableError(absl::StrCat("standard output: ", std::strerror(error))));
    };
    const absl::StatusOr<server::BackupManifest> manifest = server::BackUp(backup, sink);
    if (!manifest.ok()) return AtStageOf(manifest.status());
    PrintContents("backup", *manifest, "", /*json=*/false, stderr);
    return ExitCode::kOk;
  }
  std::error_code error;
  if (!options.overwrite && std::filesystem::exists(options.archive, error)) {
    // The move at the end checks it too, but only after all the work.
    return At(Stage::kOutput,
              absl::AlreadyExistsError(absl::StrCat("\"", options.archive, "\" exists; --overwrite replaces it")));
  }
  absl::StatusOr<base::AtomicFile> file =
      base::AtomicFile::Create(options.archive, {.overwrite = options.overwrite, .owner_only = true});
  if (!file.ok()) return At(Stage::kOutput, file.status());
  const auto sink = [&](std::string_view bytes) {
    RETURN_IF_ERROR(CheckInterrupt(interrupts));
    return At(Stage::kOutput, file->Append(bytes));
  };
  const absl::StatusOr<server::BackupManifest> manifest = server::BackUp(backup, sink);
  if (!manifest.ok()) return AtStageOf(manifest.status());
  RETURN_IF_ERROR(At(Stage::kOutput, file->Commit()));
  PrintContents("backup", *manifest, "", options.json, stdout);
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunRestore(const RestoreCommandOptions& options, Interrupts& interrupts) {
  base::FileDescriptor opened;
  if (options.archive != kStandardStream) {
    opened = base::FileDescriptor(::open(options.archive.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.valid()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot open \"", options.archive, "\": ", std::strerror(errno)));
    }
  }
  const int file = opened.valid() ? opened.get() : STDIN_FILENO;
  const auto source = [&](size_t count) -> absl::StatusOr<std::string> {
    std::string bytes(count, '\0');
    while (true) {
      RETURN_IF_ERROR(CheckInterrupt(interrupts));
      const ssize_t read = ::read(file, bytes.data(), bytes.size());
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return absl::InvalidArgumentError(absl::StrCat("cannot read the archive: ", std::strerror(errno)));
      bytes.resize(static_cast<size_t>(read));
      return bytes;
    }
  };
  absl::StatusOr<server::RestoreSummary> summary =
      server::Restore({.data_folder = options.to, .replace = options.replace}, source);
  if (!summary.ok()) return AtStageOf(summary.status());
  PrintContents("restore", summary->manifest, summary->moved_to, options.json, stdout);
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddBackup(CLI::App& app) {
  auto options = std::make_shared<BackupCommandOptions>();
  AddText(app, {.names = "archive", .help = "Archive to write; -: standard output", .type = "FILE", .required = true},
          options->archive);
  AddText(app, {"-c,--config", "Configuration of the server, which names its data folder", "FILE"}, options->config);
  AddText(app, {"--data-folder", "Data folder to back up (default: the configuration's, or tessera-data)", "FOLDER"},
          options->data_folder);
  AddFlag(app, "--files-only", "Images and adapters without jobs, for a queue in PostgreSQL", options->files_only);
  AddFlag(app, "--overwrite", "Replace an archive that exists", options->overwrite);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  return [options](Interrupts& interrupts) {
    return Finish(MakeReporter({.json = options->json, .quiet = true}), interrupts, RunBackup(*options, interrupts));
  };
}

CommandRun AddRestore(CLI::App& app) {
  auto options = std::make_shared<RestoreCommandOptions>();
  AddText(app, {.names = "archive", .help = "Archive of a backup; -: standard input", .type = "FILE", .required = true},
          options->archive);
  AddText(app, {.names = "--to", .help = "Data folder to make", .type = "FOLDER", .required = true}, options->to);
  AddFlag(app, "--replace", "Move what the folder has to its folder replaced-N", options->replace);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  return [options](Interrupts& interrupts) {
    return Finish(MakeReporter({.json = options->json, .quiet = true}), interrupts, RunRestore(*options, interrupts));
  };
}

}  // namespace tessera::client
