#include "tests/faults/holdings.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {

std::optional<Holdings> HoldingsOf(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  Holdings holdings;
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    const auto value = [&] { return std::strtod(line.c_str() + line.find(':') + 1, nullptr); };
    if (absl::StartsWith(line, "VmRSS:")) holdings.resident_mib = value() / 1024;
    if (absl::StartsWith(line, "Threads:")) holdings.threads = value();
  }
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) holdings.segments += absl::StrContains(line, "memfd:tessera");
  std::error_code error;
  const std::filesystem::directory_iterator files(folder + "/fd", error);
  if (error || holdings.resident_mib == 0) return std::nullopt;
  holdings.descriptors = static_cast<double>(std::distance(files, std::filesystem::directory_iterator()));
  return holdings;
}

}  // namespace tessera
