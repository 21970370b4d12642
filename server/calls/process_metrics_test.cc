#include "server/calls/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/machine/machine_memory.h"

namespace tessera::server {
namespace {

std::map<std::string, double> Values(const std::string& text) {
  std::map<std::string, double> values;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    EXPECT_EQ(words.size(), 2u) << line;
    EXPECT_TRUE(absl::SimpleAtod(words.back(), &values[words[0]])) << line;
  }
  return values;
}

// Returns the CPU time of getrusage(2), which counts the same in other units.
double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ProcessMetricsTest, TheProcessIsDescribedUnderPrometheusUsualNames) {
  // Uses some CPU time first: a tick of the kernel is a hundredth of a second.
  while (CpuSeconds() < 0.05) {
  }
  const double before = CpuSeconds();
  const std::map<std::string, double> values = Values(ProcessMetricsText());
  const double after = CpuSeconds();
  EXPECT_GE(values.at("process_cpu_seconds_total"), before - 0.05);
  EXPECT_LE(values.at("process_cpu_seconds_total"), after + 0.05);
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1e5);
  EXPECT_GT(values.at("process_virtual_memory_bytes"), values.at("process_resident_memory_bytes"));
  EXPECT_LE(values.at("process_start_time_seconds"), static_cast<double>(absl::ToUnixSeconds(absl::Now())) + 2);
  EXPECT_GT(values.at("process_start_time_seconds"), 1.5e9);
  EXPECT_GE(values.at("process_threads"), 1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(values.at("process_max_fds"), static_cast<double>(limit.rlim_cur));
}

TEST(ProcessMetricsTest, TheMemoryLimitIsThatOfTheMachineOrItsControlGroup) {
  const std::map<std::string, double> values = Values(ProcessMetricsText());
  EXPECT_EQ(values.at("tessera_memory_limit_bytes"), static_cast<double>(base::ReadTotalMemory()));
  EXPECT_EQ(values.contains("tessera_memory_in_use_bytes"), base::ReadControlGroupMemory().has_value());
  EXPECT_GE(values.at("tessera_out_of_memory_kills_total"), 0);
}

TEST(ProcessMetricsTest, OpenDescriptorsAreCounted) {
  const int64_t before = OpenDescriptors();
  EXPECT_GE(before, 3);
  const int one = open("/dev/null", O_RDONLY), two = open("/dev/null", O_RDONLY);
  EXPECT_EQ(OpenDescriptors(), before + 2);
  EXPECT_EQ(Values(ProcessMetricsText()).at("process_open_fds"), static_cast<double>(before + 2));
  close(one);
  close(two);
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace tessera::server
