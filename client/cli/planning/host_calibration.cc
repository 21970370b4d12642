#include "client/cli/planning/host_calibration.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/fields/enum_names.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/protocol/worker_version.h"
#include "parallel/plan/layout.h"
#include "parallel/segment/mesh_groups.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kTimeout = absl::Minutes(10);
constexpr size_t kMostProcessorText = 4 << 20, kMostFile = 64 << 10;

// Different processors may have the same name; family and model distinguish them.
std::string ProcessorName() {
  const std::string text = base::ReadSmallFile("/proc/cpuinfo", kMostProcessorText).value_or("");
  std::string name = "processor", family, model;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) break;  // the first processor's entry is complete
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() != 2) continue;
    const absl::string_view field = absl::StripAsciiWhitespace(parts[0]), value = absl::StripAsciiWhitespace(parts[1]);
    if (field == "model name") name = std::string(value);
    if (field == "cpu family") family = std::string(value);
    if (field == "model") model = std::string(value);
  }
  return family.empty() ? name : absl::StrCat(name, " (family ", family, " model ", model, ")");
}

// Returns the version, size and modification time of the worker program, which does the measurement.
std::string WorkerIdentityText() {
  const fs::path program = server::WorkerProgram();
  std::error_code error;
  const uintmax_t size = fs::file_size(program, error);
  const auto time = fs::last_write_time(program, error).time_since_epoch().count();
  return absl::StrCat(control::WorkerVersion(), ", ", size, " bytes, ", time);
}

// Measures one group of `ranks` worker processes, each with its share of the threads or with one GPU.
absl::StatusOr<std::vector<server::ProcessorShare>> MeasureGroup(int ranks, const server::CalibrationKey& key,
                                                                 absl::Span<const std::string> gpus,
                                                                 Interrupts& interrupts) {
  parallel::Layout layout;
  layout.mesh.ulysses = ranks;
  ASSIGN_OR_RETURN(const parallel::Mesh mesh, parallel::Mesh::Create(layout.mesh, ranks));
  std::shared_ptr<parallel::HostSegment> segment;
  if (ranks > 1) {
    ASSIGN_OR_RETURN(segment,
                     parallel::HostSegment::CreateShared({.ranks = ranks, .groups = parallel::MeshGroups(mesh)}));
  }
  std::vector<std::unique_ptr<server::WorkerProcess>> workers;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> arguments = {
        "--measure-ranks", base::EnumName(key.dtype), "--layout",  parallel::LayoutText(layout),
        "--rank",          absl::StrCat(rank),        "--threads", absl::StrCat(std::max(1, key.threads / ranks)),
        "--width",         absl::StrCat(key.width),   "--heads",   absl::StrCat(key.heads)};
    if (!gpus.empty()) {
      arguments.insert(arguments.end(), {"--device", gpus[static_cast<size_t>(rank)]});
    }
    int inherited = -1;
    if (segment != nullptr) {
      inherited = segment->descriptor();
      arguments.insert(arguments.end(), {"--segment", absl::StrCat(server::WorkerProcess::kInheritedDescriptor)});
    }
    ASSIGN_OR_RETURN(workers.emplace_back(), server::WorkerProcess::Start({.executable = server::WorkerExecutable(),
                                                                           .arguments = std::move(arguments),
                                                                           .inherited = inherited}));
  }
  const Interrupts::Reaction reaction(interrupts, [&] {
    for (const auto& worker : workers) worker->Kill();
  });
  const absl::Duration end = base::SteadyNow() + kTimeout;
  bool ended = true;
  for (const auto& worker : workers)
    ended = worker->WaitForExit(std::max(absl::ZeroDuration(), end - base::SteadyNow())) && ended;
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!ended) return absl::UnavailableError("measuring this machine takes more than 10 minutes");
  const std::string said(absl::StripAsciiWhitespace(workers.front()->LastOutput()));
  absl::StatusOr<std::vector<server::ProcessorShare>> shares = server::SharesOf(ranks, said);
  if (!shares.ok()) {
    return absl::UnavailableError(absl::StrCat("this machine could not be measured: ", said.substr(0, 500)));
  }
  return shares;
}

absl::Status Keep(const server::Calibration& calibration, const std::string& folder, const std::string& path) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  return base::WriteFileAtomically(path, server::CalibrationText(calibration));
}

}  // namespace

std::string CacheFolder() {
  for (const auto& [variable, below] : {std::pair("XDG_CACHE_HOME", "tessera"), std::pair("HOME", ".cache/tessera")}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return fs::path(value) / below;
  }
  return "";
}

absl::StatusOr<server::Calibration> CalibrateHost(const HostCalibrationOptions& options, Interrupts& interrupts,
                                                  const std::function<void(const std::string&)>& say) {
  server::Calibration calibration;
  const int32_t threads = options.threads > 0 ? options.threads : base::ReadMachineProcessors().available();
  const bool on_gpus = !options.gpus.empty();
  calibration.key = {.worker = WorkerIdentityText(),
                     .processor = on_gpus ? absl::StrJoin(options.gpus, ",") : ProcessorName(),
                     .threads = on_gpus ? static_cast<int32_t>(options.gpus.size()) : threads,
                     .dtype = options.dtype,
                     .width = options.width,
                     .heads = options.heads};
  const std::string folder = CacheFolder();
  const std::string path = fs::path(folder) / server::CalibrationFileName(calibration.key);
  if (!options.anew && !folder.empty()) {
    const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, kMostFile);
    if (text.ok()) {
      absl::StatusOr<server::Calibration> kept = server::ParseCalibration(*text, calibration.key);
      if (kept.ok()) return kept;
      say(absl::StrCat(path, " is measured again: ", kept.status().message()));
    }
  }
  say("measuring how fast this machine's ranks compute and exchange; this takes a minute");
  for (int ranks = 1; ranks <= server::MostRanks(calibration.key.threads); ++ranks) {
    ASSIGN_OR_RETURN(const std::vector<server::ProcessorShare> shares,
                     MeasureGroup(ranks, calibration.key, options.gpus, interrupts));
    calibration.shares.insert(calibration.shares.end(), shares.begin(), shares.end());
  }
  const absl::Status kept =
      folder.empty() ? absl::NotFoundError("neither XDG_CACHE_HOME nor HOME is set") : Keep(calibration, folder, path);
  if (!kept.ok()) say(absl::StrCat("the figures are not stored: ", kept.message()));
  return calibration;
}

}  // namespace tessera::client
