// tessera-golden DIR [--only TEXT] [--layout LAYOUT] [--device NAME] [--complete] compares this project with a folder
// of golden cases.
//
// Each case prints one line: the worst relative error, its tolerance, and its tensor. The last line is
// "N passed, N failed, N not built"; cases of families and kinds that are not built are counted separately. The exit
// status is 0 if nothing failed and something passed. With --complete, cases that are not built or that the layout
// skips fail as well, and the counts of each kind are printed. If the device is not the CPU, the first line names it.
// Models then run on that device, while functions without a model (tokenizers, schedulers, prompt cleaning, pictures)
// run on the host. On a layout of several ranks, which are threads, transformers and trajectories run with the same
// tolerances.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/device/device.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

struct Arguments {
  std::string folder, only, device = "cpu", layout = "serial";
  bool complete = false;
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
    } else if (argument == "--complete") {
      arguments.complete = true;
    } else if (arguments.folder.empty() && !argument.starts_with('-')) {
      arguments.folder = argument;
    } else {
      return std::nullopt;
    }
  }
  if (arguments.folder.empty() || (arguments.complete && !arguments.only.empty())) return std::nullopt;
  return arguments;
}

struct Counts {
  int passed = 0, failed = 0, not_built = 0, skipped = 0;
};

std::string Text(const Counts& counts) {
  return absl::StrCat(counts.passed, " passed, ", counts.failed, " failed, ", counts.not_built, " not built");
}

// Runs one case, prints its line and counts it.
void RunAndPrint(const Case& test_case, Counts& counts) {
  const absl::StatusOr<Report> report = RunCase(test_case);
  if (absl::IsUnimplemented(report.status())) {
    ++counts.not_built;
    std::printf("---- %-55s not built: %s\n", test_case.file.c_str(), std::string(report.status().message()).c_str());
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
int Conclude(const KindCounts& kinds, bool complete) {
  Counts all;
  for (const auto& [kind, counts] : kinds) {
    all.passed += counts.passed;
    all.failed += counts.failed;
    all.not_built += counts.not_built;
    all.skipped += counts.skipped;
    if (complete) std::printf("kind %s: %s, %d skipped\n", kind.c_str(), Text(counts).c_str(), counts.skipped);
  }
  const bool failed = all.failed > 0 || all.passed == 0 || (complete && all.not_built + all.skipped > 0);
  if (complete && failed) std::printf("incomplete: every case must pass\n");
  std::printf("%s\n", Text(all).c_str());
  return failed ? 1 : 0;
}

}  // namespace

int Main(int argc, char** argv) {
  const std::optional<Arguments> arguments = ParseArguments(argc, argv);
  if (!arguments) {
    std::fprintf(stderr,
                 "usage: tessera-golden DIR [--only TEXT | --complete] [--layout LAYOUT] [--device cpu|cuda|cuda:N]\n");
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
    RunAndPrint(test_case, counts);
  }
  return Conclude(kinds, arguments->complete);
}

}  // namespace tessera::golden
