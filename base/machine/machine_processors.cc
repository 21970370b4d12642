#include "base/machine/machine_processors.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/machine/control_group.h"

namespace tessera::base {
namespace {

constexpr size_t kMaxMaskBytes = 4 << 10;
constexpr size_t kMostMaskBits = 1 << 16;  // largest mask; Linux supports 8192

std::string ReadText(const std::string& path) { return ReadSmallFile(path, kMaxMaskBytes).value_or(""); }

std::optional<double> Ratio(absl::string_view quota, absl::string_view period) {
  int64_t numerator = 0, denominator = 0;
  if (!absl::SimpleAtoi(quota, &numerator) || !absl::SimpleAtoi(period, &denominator)) return std::nullopt;
  if (numerator <= 0 || denominator <= 0) return std::nullopt;  // version 1 writes "no limit" as -1
  return static_cast<double>(numerator) / static_cast<double>(denominator);
}

// cpu.max contains "QUOTA PERIOD" or "max PERIOD", in microseconds.
std::optional<double> ProcessorsOfGroup(const ControlGroup& group) {
  if (group.version == 1) {
    return Ratio(ReadText(group.folder + "/cpu.cfs_quota_us"), ReadText(group.folder + "/cpu.cfs_period_us"));
  }
  const std::string text = ReadText(group.folder + "/cpu.max");
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return words.size() == 2 ? Ratio(words[0], words[1]) : std::nullopt;
}

}  // namespace

// The mask must have room for every processor that the kernel was configured for, or the call fails.
std::vector<int32_t> AllowedProcessors() {
  for (size_t most = CPU_SETSIZE; most <= kMostMaskBits; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(most), [](cpu_set_t* set) { CPU_FREE(set); });
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (sched_getaffinity(getpid(), bytes, mask.get()) != 0) continue;
    std::vector<int32_t> allowed;
    for (size_t processor = 0; processor < most; ++processor) {
      if (CPU_ISSET_S(processor, bytes, mask.get())) allowed.push_back(static_cast<int32_t>(processor));
    }
    return allowed;
  }
  return {};
}

int32_t MachineProcessors::available() const {
  if (!control_group || *control_group >= allowed) return allowed;
  return std::max(1, static_cast<int32_t>(std::ceil(*control_group)));
}

std::string MachineProcessors::available_in() const {
  return available() < allowed ? "the control group (container) of this process" : "this machine";
}

MachineProcessors ReadMachineProcessors(const std::string& root) {
  MachineProcessors processors = {.allowed = static_cast<int32_t>(AllowedProcessors().size())};
  if (processors.allowed == 0)
    processors.allowed = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    const std::optional<double> limit = ProcessorsOfGroup(group);
    if (limit && (!processors.control_group || *limit < *processors.control_group)) processors.control_group = limit;
  }
  return processors;
}

}  // namespace tessera::base
