#include "runtime/worker/worker_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::runtime {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& words) {
  return std::string(ReadWorkerOptions(words).status().message());
}

TEST(WorkerOptions, AreReadFromWords) {
  const absl::StatusOr<WorkerOptions> read =
      ReadWorkerOptions({"--socket", "/tmp/a b", "--orphan-grace-period", "0.5", "--layout", "ulysses=2", "--rank", "1",
                         "--segment", "7", "--measure-ranks", "bf16", "--rows", "4096"});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->socket, "/tmp/a b");
  EXPECT_EQ(read->orphan_grace_period, 0.5);
  EXPECT_EQ(read->layout, "ulysses=2");
  EXPECT_EQ(read->rank, 1);
  EXPECT_EQ(read->segment, 7);
  EXPECT_EQ(read->measure_ranks, "bf16");
  EXPECT_EQ(read->rows, 4096);
  EXPECT_EQ(read->data, 0);
  EXPECT_EQ(read->device, "cpu");
}

TEST(WorkerOptions, NameTheOptionThatIsWrong) {
  EXPECT_EQ(ErrorOf({}), "--socket is missing");
  EXPECT_EQ(ErrorOf({"--sockets", "a"}), "there is no option --sockets");
  EXPECT_EQ(ErrorOf({"--socket"}), "--socket has no value");
  EXPECT_EQ(ErrorOf({"--socket", "a", "--rank", "one"}), "--rank is one; it must be a number");
  EXPECT_EQ(ErrorOf({"--socket", "a", "--rank", "99999999999"}), "--rank is 99999999999; it must be a number");
  EXPECT_THAT(ErrorOf({"--socket", "a", "--rank", "-1"}), HasSubstr("--rank"));
  EXPECT_THAT(ErrorOf({"--socket", "a", "--data", "65"}), HasSubstr("--data"));
  EXPECT_THAT(ErrorOf({"--socket", "a", "--width", "0"}), HasSubstr("--width"));
  EXPECT_THAT(ErrorOf({"--socket", "a", "--orphan-grace-period", "nan"}), HasSubstr("--orphan-grace-period"));
}

TEST(WorkerOptions, AreDescribedOneToALine) {
  EXPECT_THAT(DescribeWorkerOptions(), HasSubstr("  --rank VALUE  rank of this process in its group\n"));
}

}  // namespace
}  // namespace tessera::runtime
