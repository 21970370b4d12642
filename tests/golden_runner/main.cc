// tessera-golden DIR [--only TEXT]: compares this project with a folder of golden cases.
//
// One line a case: the worst relative error, its tolerance, and which tensor it was. Ends with
// "N passed, N failed, N not built"; families that do not exist yet are counted apart. Exit status 0 when nothing failed
// and something passed.
#include <ATen/Parallel.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/golden_runner/golden_case.h"

int main(int argc, char** argv) {
  using tessera::golden::Case;
  using tessera::golden::Report;
  std::string folder, only;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (folder.empty() && argv[i][0] != '-') {
      folder = argv[i];
    } else {
      folder.clear();
      break;
    }
  }
  if (folder.empty()) {
    std::fprintf(stderr, "usage: tessera-golden DIR [--only TEXT]\n");
    return 2;
  }
  const absl::StatusOr<std::vector<Case>> cases = tessera::golden::ReadCases(folder);
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().ToString().c_str());
    return 2;
  }
  int passed = 0, failed = 0, not_built = 0;
  for (const Case& test_case : *cases) {
    if (test_case.file.find(only) == std::string::npos) continue;
    absl::StatusOr<Report> report = absl::InternalError("not run");
    try {
      report = tessera::golden::RunCase(test_case);
    } catch (const c10::Error& error) {
      report = absl::InternalError(error.what_without_backtrace());
    } catch (const std::exception& error) {
      report = absl::InternalError(error.what());
    }
    if (absl::IsUnimplemented(report.status())) {
      ++not_built;
      std::printf("---- %-55s not built: %s\n", test_case.file.c_str(), std::string(report.status().message()).c_str());
    } else if (!report.ok()) {
      ++failed;
      std::printf("FAIL %-55s %s\n", test_case.file.c_str(), report.status().ToString().c_str());
    } else {
      ++(report->passed() ? passed : failed);
      std::printf("%s %-55s error %.1e, tolerance %.1e, %d comparisons, worst: %s\n", report->passed() ? "ok  " : "FAIL",
                  test_case.file.c_str(), report->error(), report->tolerance(), report->comparisons(),
                  report->what().c_str());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed, %d not built\n", passed, failed, not_built);
  return failed == 0 && passed > 0 ? 0 : 1;
}
