// tessera-golden DIR [--only TEXT] [--layout LAYOUT] [--device NAME] compares this project with a folder of golden
// cases.
//
// Each case prints one line: the worst relative error, its tolerance, and its tensor. The last line is
// "N passed, N failed, N not built"; cases of families that are not built are counted separately. The exit status is 0
// if nothing failed and something passed. If the device is not the CPU, the first line names it. Models then run on
// that device, while functions without a model (tokenizers, schedulers, prompt cleaning) run on the host. On a layout
// of several ranks, which are threads, transformers and trajectories run with the same tolerances.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "runtime/device/device.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

int Main(int argc, char** argv) {
  std::string folder, only, device_name = "cpu", layout_text = "serial";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (std::string_view(argv[i]) == "--layout" && i + 1 < argc) {
      layout_text = argv[++i];
    } else if (std::string_view(argv[i]) == "--device" && i + 1 < argc) {
      device_name = argv[++i];
    } else if (folder.empty() && argv[i][0] != '-') {
      folder = argv[i];
    } else {
      folder.clear();
      break;
    }
  }
  if (folder.empty()) {
    std::fprintf(stderr, "usage: tessera-golden DIR [--only TEXT] [--layout LAYOUT] [--device cpu|cuda|cuda:N]\n");
    return 2;
  }
  const absl::StatusOr<parallel::Layout> layout = parallel::ParseLayout(layout_text);
  if (!layout.ok()) {
    std::fprintf(stderr, "tessera-golden: %s\n", std::string(layout.status().message()).c_str());
    return 2;
  }
  // Must precede every other use of LibTorch, which looks for its CUDA half only once.
  const absl::StatusOr<at::Device> device = runtime::OpenDevice(device_name);
  if (!device.ok()) {
    std::fprintf(stderr, "tessera-golden: %s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  if (layout->ranks() > 1) std::printf("layout %s\n", parallel::LayoutText(*layout).c_str());
  if (!device->is_cpu()) std::printf("device %s\n", device->str().c_str());
  absl::StatusOr<std::vector<Case>> cases = ReadCases(folder);
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().ToString().c_str());
    return 2;
  }
  int passed = 0, failed = 0, not_built = 0;
  for (Case& test_case : *cases) {
    if (test_case.file.find(only) == std::string::npos) continue;
    // Several ranks run only the cases of distributed code: forward passes and trajectories.
    constexpr std::array kOnRanks{"transformer", "pipeline", "adapter", "adapter_sum", "adapter_trajectory",
                                   "image_pipeline"};
    if (layout->ranks() > 1 && std::ranges::find(kOnRanks, test_case.kind) == kOnRanks.end()) continue;
    test_case.device = *device;
    test_case.layout = *layout;
    const absl::StatusOr<Report> report = RunCase(test_case);
    if (absl::IsUnimplemented(report.status())) {
      ++not_built;
      std::printf("---- %-55s not built: %s\n", test_case.file.c_str(), std::string(report.status().message()).c_str());
    } else if (!report.ok()) {
      ++failed;
      std::printf("FAIL %-55s %s\n", test_case.file.c_str(), report.status().ToString().c_str());
    } else {
      ++(report->passed() ? passed : failed);
      std::printf("%s %-55s error %.1e, tolerance %.1e, %d comparisons, worst: %s\n",
                  report->passed() ? "ok  " : "FAIL", test_case.file.c_str(), report->error(), report->tolerance(),
                  report->comparisons(), report->what().c_str());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed, %d not built\n", passed, failed, not_built);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace tessera::golden
