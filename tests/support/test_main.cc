// The main function of every test program. With --source=FILE only the tests of that file are run, so that CTest runs
// each file of a program as a test of its own; --gtest_filter selects among them.
#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kSource = "--source=";

bool IsIn(const testing::TestInfo& test, std::string_view source) {
  const std::string_view file = test.file();
  return file.ends_with(source) && (file.size() == source.size() || file[file.size() - source.size() - 1] == '/');
}

// Whether one of the patterns, which colons separate, matches the name.
bool MatchesOne(std::string_view patterns, const std::string& name) {
  while (!patterns.empty()) {
    const size_t end = std::min(patterns.find(':'), patterns.size());
    if (fnmatch(std::string(patterns.substr(0, end)).c_str(), name.c_str(), 0) == 0) return true;
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return false;
}

// Whether the filter of --gtest_filter, "POSITIVE" or "POSITIVE-NEGATIVE", selects the test.
bool Selects(std::string_view filter, const std::string& name) {
  const size_t dash = std::min(filter.find('-'), filter.size());
  const std::string_view positive = filter.substr(0, dash), negative = filter.substr(std::min(dash + 1, filter.size()));
  return (positive.empty() || MatchesOne(positive, name)) && !MatchesOne(negative, name);
}

// Returns a filter that matches those tests of the file that `within` selects; empty if there are none.
std::string FilterOf(std::string_view source, std::string_view within) {
  std::string filter;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const testing::TestInfo& test = *suite.GetTestInfo(k);
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (IsIn(test, source) && Selects(within, name)) filter += name + ":";
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  std::string source;
  for (int i = 1; i < argc; ++i) {
    if (const std::string_view argument = argv[i]; argument.starts_with(kSource))
      source = argument.substr(kSource.size());
  }
  if (!source.empty()) {
    const std::string filter = FilterOf(source, GTEST_FLAG_GET(filter));
    if (filter.empty()) {
      std::fprintf(stderr, "%s has no test of %s that the filter selects\n", argv[0], source.c_str());
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
