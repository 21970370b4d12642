#include "base/machine/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/machine/control_group.h"
#include "base/machine/proc_text.h"
#include "base/text/string_views.h"

namespace tessera::base {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// Version 1 writes "no limit" as 2^63 - 1 rounded down to a page; no machine has that much memory.
constexpr int64_t kNoLimit = int64_t{1} << 62;

std::optional<int64_t> ParseBytes(std::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(AbslView(text), &value) || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadBytes(const std::string& path) { return ParseBytes(ReadProcText(path)); }

// "MemAvailable:  123 kB"
std::optional<int64_t> ReadKilobytes(const std::string& path, std::string_view label) {
  const std::vector<std::string> words = WordsAfter(ReadProcText(path), label);
  if (words.size() != 2 || words[1] != "kB") return std::nullopt;
  std::optional<int64_t> bytes = ParseBytes(words[0]);
  if (bytes && __builtin_mul_overflow(*bytes, int64_t{1024}, &*bytes)) return std::nullopt;
  return bytes;
}

std::optional<int64_t> Least(std::optional<int64_t> a, std::optional<int64_t> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

// The names of the files of one version.
struct GroupFiles {
  std::vector<const char*> limits;
  const char* usage;
  const char* inactive;  // in memory.stat
  const char* active;    // the other file pages in it
  const char* mapped;    // file and shared memory pages that processes have mapped
  const char* shared;    // shared memory
  const char* kills;     // the file with "oom_kill"
};

GroupFiles FilesOfVersion(int version) {
  if (version == 1) {
    return {{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file",
            "total_mapped_file",       "total_shmem",           "memory.oom_control"};
  }
  return {{"memory.max", "memory.high"},
          "memory.current",
          "inactive_file",
          "active_file",
          "file_mapped",
          "shmem",
          "memory.events"};
}

// Returns the value of a line of memory.stat or a similar file; 0 if it is missing.
int64_t StatOf(const std::string& text, const char* label) {
  const std::vector<std::string> words = WordsAfter(text, label);
  return words.size() == 1 ? ParseBytes(words[0]).value_or(0) : 0;
}

std::optional<int64_t> MemoryOfGroup(const ControlGroup& group) {
  std::optional<int64_t> limit;
  for (const char* name : FilesOfVersion(group.version).limits) {
    limit = Least(limit, ReadBytes(absl::StrCat(group.folder, "/", name)));
  }
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

std::optional<int64_t> LeftInGroup(const ControlGroup& group) {
  const std::optional<int64_t> limit = MemoryOfGroup(group);
  if (!limit) return std::nullopt;
  const GroupFiles files = FilesOfVersion(group.version);
  const int64_t usage = ReadBytes(absl::StrCat(group.folder, "/", files.usage)).value_or(0);
  const int64_t inactive = StatOf(ReadProcText(group.folder + "/memory.stat"), files.inactive);
  const int64_t in_use = usage - std::min(usage, inactive);
  return *limit - std::min(*limit, in_use);
}

std::optional<int64_t> ReadControlGroups(const std::string& root,
                                         std::optional<int64_t> (*read)(const ControlGroup& group)) {
  std::optional<int64_t> least;
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) least = Least(least, read(group));
  return least;
}

std::optional<int64_t> ReadAddressSpace(const std::string& root) {
  // "Max address space  soft  hard  bytes"
  const std::vector<std::string> words = WordsAfter(ReadProcText(root + "/proc/self/limits"), "Max address space");
  const std::optional<int64_t> limit = words.empty() ? std::nullopt : ParseBytes(words[0]);
  if (!limit) return std::nullopt;
  const int64_t used = ReadKilobytes(root + "/proc/self/status", "VmSize:").value_or(0);
  return *limit - std::min(*limit, used);
}

}  // namespace

MachineMemory MachineMemory::Without(int64_t bytes) const {
  MachineMemory rest = *this;
  for (std::optional<int64_t>* limit : {&rest.machine, &rest.control_group}) {
    if (limit->has_value()) *limit = std::max<int64_t>(**limit - bytes, 0);
  }
  return rest;
}

int64_t MachineMemory::available() const { return Least(machine, Least(control_group, address_space)).value_or(kMost); }

std::string MachineMemory::available_in() const {
  const int64_t least = available();
  if (control_group == least) return "the control group (container) of this process";
  if (address_space == least) return "the limit of address space (ulimit -v)";
  return "this machine";
}

MachineMemory ReadMachineMemory(const std::string& root) {
  return {.machine = ReadKilobytes(root + "/proc/meminfo", "MemAvailable:"),
          .control_group = ReadControlGroups(root, LeftInGroup),
          .address_space = ReadAddressSpace(root)};
}

std::optional<ControlGroupMemory> ReadControlGroupMemory(const std::string& root) {
  std::optional<ControlGroupMemory> least;
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    const std::optional<int64_t> limit = MemoryOfGroup(group);
    if (!limit || (least && least->limit <= *limit)) continue;
    const GroupFiles files = FilesOfVersion(group.version);
    const std::string stat = ReadProcText(group.folder + "/memory.stat");
    const int64_t usage = ReadBytes(absl::StrCat(group.folder, "/", files.usage)).value_or(0);
    const int64_t of_files = StatOf(stat, files.inactive) + StatOf(stat, files.active);
    const int64_t mapped = std::max<int64_t>(StatOf(stat, files.mapped) - StatOf(stat, files.shared), 0);
    least = {.limit = *limit, .in_use = std::max<int64_t>(usage - std::max<int64_t>(of_files - mapped, 0), 0)};
  }
  return least;
}

int64_t ReadProcessMemory(const std::vector<int64_t>& processes, const std::string& root) {
  int64_t bytes = 0;
  for (const int64_t process : processes) {
    bytes += ReadKilobytes(absl::StrCat(root, "/proc/", process, "/status"), "RssAnon:").value_or(0);
  }
  return bytes;
}

std::vector<int64_t> ProcessFamily(const std::string& root) {
  std::vector<int64_t> family;
  const std::string status = ReadProcText(root + "/proc/self/status");
  const int64_t self = StatOf(status, "Pid:");
  for (const int64_t process : {self, StatOf(status, "PPid:")}) {
    if (process > 1) family.push_back(process);
  }
  // A child is listed under the thread that started it.
  std::error_code error;
  for (std::filesystem::directory_iterator thread(root + "/proc/self/task", error), end; !error && thread != end;
       thread.increment(error)) {
    const std::string children = ReadProcText(thread->path().string() + "/children");
    for (const absl::string_view child : absl::StrSplit(children, ' ', absl::SkipEmpty())) {
      int64_t number = 0;
      if (absl::SimpleAtoi(child, &number)) family.push_back(number);
    }
  }
  return family;
}

int64_t ReadOutOfMemoryKills(const std::string& root) {
  int64_t kills = 0;
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    kills += StatOf(ReadProcText(absl::StrCat(group.folder, "/", FilesOfVersion(group.version).kills)), "oom_kill");
  }
  return kills;
}

int64_t ReadTotalMemory(const std::string& root) {
  return Least(ReadKilobytes(root + "/proc/meminfo", "MemTotal:"), ReadControlGroups(root, MemoryOfGroup))
      .value_or(kMost);
}

}  // namespace tessera::base
