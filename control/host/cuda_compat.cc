#include "control/host/cuda_compat.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files/file.h"

namespace tessera::control {
namespace {

namespace fs = std::filesystem;

// The oldest driver branch that supports CUDA 13, and the oldest one that cuda-compat 13.0 works with.
constexpr int kServingBranch = 580;
constexpr int kOldestCompatBranch = 535;
constexpr size_t kMaxFileBytes = 4096;
constexpr size_t kMostCards = 128;

bool IsDigitAt(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[at]));
}

// Whether the model belongs to a series of data-centre cards whose architectures the plug-in contains: A100, H200,
// B200, L40S, GH200, GB300. "NVIDIA RTX A6000" and "NVIDIA GeForce RTX 4090" do not.
bool IsDataCentreCard(absl::string_view card) {
  absl::ConsumePrefix(&card, "NVIDIA ");
  for (const absl::string_view series : {"GH", "GB", "A", "H", "B", "L"}) {
    if (absl::StartsWith(card, series) && IsDigitAt(card, series.size())) return true;
  }
  return false;
}

}  // namespace

NvidiaDriver ReadNvidiaDriver(const std::string& root) {
  NvidiaDriver driver;
  const std::string version = base::ReadSmallFile(root + "/sys/module/nvidia/version", kMaxFileBytes).value_or("");
  const absl::string_view line = absl::StripAsciiWhitespace(version);
  const bool is_version = std::all_of(
      line.begin(), line.end(), [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; });
  if (is_version) driver.version = std::string(line);
  std::error_code error;
  for (fs::directory_iterator gpu(root + "/proc/driver/nvidia/gpus", error), end;
       !error && gpu != end && driver.cards.size() < kMostCards; gpu.increment(error)) {
    const std::string text = base::ReadSmallFile(gpu->path() / "information", kMaxFileBytes).value_or("");
    std::string model;
    for (absl::string_view entry : absl::StrSplit(text, '\n')) {
      if (absl::ConsumePrefix(&entry, "Model:")) model = std::string(absl::StripAsciiWhitespace(entry));
    }
    driver.cards.push_back(model);
  }
  std::sort(driver.cards.begin(), driver.cards.end());
  return driver;
}

DriverFit FitOf(const NvidiaDriver& driver) {
  int branch = 0;
  const absl::string_view version = driver.version;
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &branch)) return DriverFit::kUnknown;
  if (branch >= kServingBranch) return DriverFit::kServes;
  const bool data_centre =
      !driver.cards.empty() &&
      std::all_of(driver.cards.begin(), driver.cards.end(), [](const std::string& c) { return IsDataCentreCard(c); });
  return branch >= kOldestCompatBranch && data_centre ? DriverFit::kCompat : DriverFit::kTooOld;
}

std::string CudaCompatOf(const std::string& program) {
  std::error_code error;
  const fs::path folder = fs::path(program).parent_path().parent_path() / "lib/cuda-compat";
  return fs::exists(folder / "libcuda.so.1", error) ? folder.string() : "";
}

void UseCudaCompat(const NvidiaDriver& driver, const std::string& program) {
  if (FitOf(driver) != DriverFit::kCompat) return;
  const std::string folder = CudaCompatOf(program);
  if (folder.empty()) return;
  const char* others = std::getenv("LD_LIBRARY_PATH");
  const bool has_others = others != nullptr && *others != '\0';
  setenv("LD_LIBRARY_PATH", absl::StrCat(folder, has_others ? ":" : "", has_others ? others : "").c_str(),
         /*overwrite=*/1);
}

}  // namespace tessera::control
