// tessera-golden DIR [--only TEXT | --complete [--except TEXT]...] [--layout LAYOUT [--against-one-rank]]
// [--device NAME] compares this project with a folder of golden cases.
//
// Each case prints one line: the worst relative error, its tolerance, and its tensor. The last line is
// "N passed, N failed, N not built"; cases of families and kinds that are not built are counted separately. The exit
// status is 0 if nothing failed and something passed. With --complete, cases that are not built or that the layout
// skips fail as well, and the counts of each kind are printed. --except excepts the cases that are not built and whose
// file name or note in the manifest contains TEXT, in any case of its letters; they are counted as excepted, and a TEXT
// that excepts no case fails the run. If the device is not the CPU, the first line names it. Models then run on that
// device, while functions without a model (tokenizers, schedulers, prompt cleaning, pictures) run on the host. On a
// layout of several ranks, which are threads, transformers and trajectories run with the same tolerances. With
// --against-one-rank, trajectories also run in fp64 on the layout and on one rank, and the latents of every rank after
// every step must be within 1e-12 of those of the one.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/device/device.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

struct Arguments {
  std::string folder, only, device = "cpu", layout = "serial";
  bool complete = false, against_one_rank = false;
  std::vector<std::string> excepted;  // parts of file names or notes
};

std::optional<Arguments> ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--only" && i + 1 < argc) {
      arguments.only = argv[++i];
    } else if (argument == "--layout" && i + 1 < argc) {
      arguments.layout = argv[++i];
    } else if (argument == "--device" && i + 1 < argc) {
      arguments.device = argv[++i];
    } else if (argument == "--except" && i + 1 < argc) {
      arguments.excepted.emplace_back(argv[++i]);
    } else if (argument == "--against-one-rank") {
      arguments.against_one_rank = true;
    } else if (argument == "--complete") {
      arguments.complete = true;
    } else if (arguments.folder.empty() && !argument.starts_with('-')) {
      arguments.folder = argument;
    } else {
      return std::nullopt;
    }
  }
  if (arguments.folder.empty() || (arguments.complete && !arguments.only.empty())) return std::nullopt;
  if (!arguments.complete && !arguments.excepted.empty()) return std::nullopt;
  return arguments;
}

struct Counts {
  int passed = 0, failed = 0, not_built = 0, skipped = 0, excepted = 0;
};

std::string Text(const Counts& counts) {
  const std::string excepted = counts.excepted > 0 ? absl::StrCat(", ", counts.excepted, " excepted") : "";
  return absl::StrCat(counts.passed, " passed, ", counts.failed, " failed, ", counts.not_built, " not built", excepted);
}

// The exceptions of --except, with the number of cases that each has excepted.
using Exceptions = std::vector<std::pair<std::string, int>>;

// Whether the case is excepted; counts it for every exception that names it.
bool IsExcepted(const Case& test_case, Exceptions& exceptions) {
  bool excepted = false;
  for (auto& [text, count] : exceptions) {
    const std::string named = absl::AsciiStrToLower(absl::StrCat(test_case.file, "\n", test_case.notes));
    if (named.find(absl::AsciiStrToLower(text)) == std::string::npos) continue;
    ++count;
    excepted = true;
  }
  return excepted;
}

// Runs one case, prints its line and counts it.
void RunAndPrint(const Case& test_case, Exceptions& exceptions, Counts& counts) {
  const absl::StatusOr<Report> report = RunCase(test_case);
  if (absl::IsUnimplemented(report.status())) {
    const bool excepted = IsExcepted(test_case, exceptions);
    ++(excepted ? counts.excepted : counts.not_built);
    std::printf("---- %-55s not built%s: %s\n", test_case.file.c_str(), excepted ? ", excepted" : "",
                std::string(report.status().message()).c_str());
  } else if (!report.ok()) {
    ++counts.failed;
    std::printf("FAIL %-55s %s\n", test_case.file.c_str(), report.status().ToString().c_str());
  } else {
    ++(report->passed() ? counts.passed : counts.failed);
    std::printf("%s %-55s error %.1e, tolerance %.1e, %d comparisons, worst: %s\n", report->passed() ? "ok  " : "FAIL",
                test_case.file.c_str(), report->error(), report->tolerance(), report->comparisons(),
                report->what().c_str());
  }
  std::fflush(stdout);
}

// Several ranks run only the cases of distributed code: forward passes and trajectories.
bool RunsOn(const parallel::Layout& layout, const std::string& kind) {
  constexpr std::array kOnRanks{"transformer",        "transformer_kv", "pipeline",   "adapter",         "adapter_sum",
                                "adapter_trajectory", "image_pipeline", "checkpoint", "quantized_folder"};
  return layout.ranks() == 1 || std::ranges::find(kOnRanks, kind) != kOnRanks.end();
}

// The counts of the kinds, in the order of their first cases.
using KindCounts = std::vector<std::pair<std::string, Counts>>;

Counts& CountsOf(KindCounts& kinds, const std::string& kind) {
  const auto found = std::ranges::find(kinds, kind, &KindCounts::value_type::first);
  return found != kinds.end() ? found->second : kinds.emplace_back(kind, Counts{}).second;
}

// Prints the counts and returns the exit status.
int Conclude(const KindCounts& kinds, const Exceptions& exceptions, bool complete) {
  Counts all;
  for (const auto& [kind, counts] : kinds) {
    all.passed += counts.passed;
    all.failed += counts.failed;
    all.not_built += counts.not_built;
    all.skipped += counts.skipped;
    all.excepted += counts.excepted;
    if (complete) std::printf("kind %s: %s, %d skipped\n", kind.c_str(), Text(counts).c_str(), counts.skipped);
  }
  bool failed = all.failed > 0 || all.passed == 0 || (complete && all.not_built + all.skipped > 0);
  if (complete && failed) std::printf("incomplete: every case must pass\n");
  for (const auto& [text, count] : exceptions) {
    if (count > 0) continue;
    std::printf("--except %s excepts no case: none of that name is not built\n", text.c_str());
    failed = true;
  }
  std::printf("%s\n", Text(all).c_str());
  return failed ? 1 : 0;
}

}  // namespace

int Main(int argc, char** argv) {
  const std::optional<Arguments> arguments = ParseArguments(argc, argv);
  if (!arguments) {
    std::fprintf(stderr,
                 "usage: tessera-golden DIR [--only TEXT | --complete [--except TEXT]...] [--layout LAYOUT "
                 "[--against-one-rank]] "
                 "[--device cpu|cuda|cuda:N]\n");
    return 2;
  }
  const absl::StatusOr<parallel::Layout> layout = parallel::ParseLayout(arguments->layout);
  if (!layout.ok()) {
    std::fprintf(stderr, "tessera-golden: %s\n", std::string(layout.status().message()).c_str());
    return 2;
  }
  // Must precede every other use of LibTorch, which looks for its CUDA half only once.
  const absl::StatusOr<at::Device> device = runtime::OpenDevice(arguments->device);
  if (!device.ok()) {
    std::fprintf(stderr, "tessera-golden: %s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  if (layout->ranks() > 1) std::printf("layout %s\n", parallel::LayoutText(*layout).c_str());
  if (!device->is_cpu()) std::printf("device %s\n", device->str().c_str());
  absl::StatusOr<std::vector<Case>> cases = ReadCases(arguments->folder);
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().ToString().c_str());
    return 2;
  }
  Exceptions exceptions;
  for (const std::string& text : arguments->excepted) exceptions.emplace_back(text, 0);
  KindCounts kinds;
  for (Case& test_case : *cases) {
    if (test_case.file.find(arguments->only) == std::string::npos) continue;
    Counts& counts = CountsOf(kinds, test_case.kind);
    if (!RunsOn(*layout, test_case.kind)) {
      ++counts.skipped;
      continue;
    }
    test_case.device = *device;
    test_case.layout = *layout;
    test_case.against_one_rank = arguments->against_one_rank;
    RunAndPrint(test_case, exceptions, counts);
  }
  return Conclude(kinds, exceptions, arguments->complete);
}

}  // namespace tessera::golden
