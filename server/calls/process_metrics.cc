#include "server/calls/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/machine/machine_memory.h"
#include "base/machine/proc_text.h"

namespace tessera::server {
namespace {

#ifdef __clang__
constexpr char kCompiler[] = "clang " __clang_version__;
#else
constexpr char kCompiler[] = "gcc " __VERSION__;
#endif

// Fields of /proc/self/stat by their numbers in proc(5), from the third on, because the second, the program's name, may
// contain anything.
class ProcessStat {
 public:
  ProcessStat() {
    const std::string text = base::ReadProcText("/proc/self/stat");
    const size_t end = text.rfind(')');
    if (end == std::string::npos) return;
    const std::vector<std::string> fields =
        absl::StrSplit(absl::string_view(text).substr(end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
    fields_ = fields;
  }

  std::optional<double> Field(size_t number) const {
    constexpr size_t kFirst = 3;
    double value = 0;
    if (number < kFirst || number - kFirst >= fields_.size()) return std::nullopt;
    if (!absl::SimpleAtod(fields_[number - kFirst], &value)) return std::nullopt;
    return value;
  }

 private:
  std::vector<std::string> fields_;
};

// Returns the time when the machine was started, in seconds since the epoch.
std::optional<double> BootTime() {
  for (const absl::string_view line : absl::StrSplit(base::ReadProcText("/proc/stat"), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    double seconds = 0;
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtod(words[1], &seconds)) return seconds;
  }
  return std::nullopt;
}

void Append(std::string& text, const char* name, const char* type, const char* help, std::optional<double> value) {
  if (!value.has_value()) return;
  absl::StrAppend(&text, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n", name, " ");
  std::ostringstream number;
  number.precision(std::numeric_limits<double>::max_digits10);
  number << *value;
  absl::StrAppend(&text, number.str(), "\n");
}

}  // namespace

int64_t OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int64_t count = -3;  // excludes ".", "..", and the folder's descriptor
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int64_t MostDescriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT64_MAX) return INT64_MAX;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string BuildInfoText(const std::string& version) {
  return absl::StrCat("# HELP tessera_build_info Version and build of this server.\n",
                      "# TYPE tessera_build_info gauge\n", "tessera_build_info{version=\"", version, "\",compiler=\"",
                      kCompiler, "\"} 1\n");
}

std::string DroppedLogLinesText(int64_t lines) {
  return absl::StrCat(
      "# HELP tessera_log_lines_dropped_total Log lines that were dropped because standard error did not accept "
      "them.\n",
      "# TYPE tessera_log_lines_dropped_total counter\n", "tessera_log_lines_dropped_total ", lines, "\n");
}

std::string ProcessMetricsText() {
  const ProcessStat stat;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto scaled = [](std::optional<double> value, double by) {
    return value.has_value() ? std::optional(*value * by) : value;
  };
  std::string text;
  std::optional<double> cpu = stat.Field(14);  // in user mode
  if (const std::optional<double> system = stat.Field(15); cpu.has_value() && system.has_value()) cpu = *cpu + *system;
  Append(text, "process_cpu_seconds_total", "counter", "Processor time in seconds, user and system.",
         scaled(cpu, 1 / ticks));
  Append(text, "process_virtual_memory_bytes", "gauge", "Virtual memory.", stat.Field(23));
  Append(text, "process_resident_memory_bytes", "gauge", "Resident memory.",
         scaled(stat.Field(24), static_cast<double>(sysconf(_SC_PAGESIZE))));
  std::optional<double> start = scaled(stat.Field(22), 1 / ticks);
  if (const std::optional<double> boot = BootTime(); start.has_value()) {
    start = boot.has_value() ? std::optional(*start + *boot) : std::nullopt;
  }
  Append(text, "process_start_time_seconds", "gauge", "Start of the process since the epoch, in seconds.", start);
  Append(text, "process_open_fds", "gauge", "Open file descriptors.", static_cast<double>(OpenDescriptors()));
  Append(text, "process_max_fds", "gauge", "File descriptors that may be open.",
         static_cast<double>(MostDescriptors()));
  Append(text, "process_threads", "gauge", "Threads.", stat.Field(20));
  Append(text, "tessera_memory_limit_bytes", "gauge",
         "The memory limit of the server's control group (container), or the machine's memory.",
         static_cast<double>(base::ReadTotalMemory()));
  if (const std::optional<base::ControlGroupMemory> group = base::ReadControlGroupMemory()) {
    Append(text, "tessera_memory_in_use_bytes", "gauge",
           "Memory in use in the control group of that limit, without file pages that no process has mapped.",
           static_cast<double>(group->in_use));
  }
  Append(text, "tessera_out_of_memory_kills_total", "counter",
         "Processes that the kernel has killed in the server's control groups because memory ran out.",
         static_cast<double>(base::ReadOutOfMemoryKills()));
  return text;
}

}  // namespace tessera::server
