#include "base/log/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"

namespace tessera::base {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kQueueBytes = 1000;

class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = FileDescriptor(ends[0]);
    pipe_ = FileDescriptor(ends[1]);
    pipe_bytes_ = static_cast<size_t>(fcntl(pipe_.get(), F_SETPIPE_SZ, 4096));
  }

  std::string Read(size_t bytes) const {
    std::string text(bytes, '\0');
    for (size_t got = 0; got < bytes;) {
      const ssize_t more = read(reader_.get(), text.data() + got, bytes - got);
      if (more <= 0) break;
      got += static_cast<size_t>(more);
    }
    return text;
  }

  FileDescriptor reader_, pipe_;
  size_t pipe_bytes_ = 0;
};

TEST_F(LogWriterTest, LinesArriveInTheirOrder) {
  LogWriter writer({.descriptor = pipe_.get()});
  writer.WriteText("first\n");
  writer.Write("second");
  ASSERT_TRUE(writer.Flush(absl::Minutes(1)));
  EXPECT_EQ(Read(6), "first\n");
  EXPECT_EQ(Read(9), "{\"time\":\"");
  EXPECT_EQ(writer.dropped(), 0);
}

TEST_F(LogWriterTest, AStalledReaderDropsLinesAndOneLineReportsThemWhereTheyAreMissing) {
  LogWriter writer({.descriptor = pipe_.get(), .queue_bytes = kQueueBytes});
  const std::string fill(pipe_bytes_, 'x');
  ASSERT_EQ(write(pipe_.get(), fill.data(), fill.size()), static_cast<ssize_t>(fill.size()));
  for (int i = 0; i < 1000; ++i) writer.WriteText(absl::StrCat("line ", 100 + i % 10, "\n"));
  EXPECT_EQ(writer.dropped(), 1000 - 111) << "the queue holds 111 lines of nine bytes";
  EXPECT_FALSE(writer.Flush(absl::ZeroDuration()));

  EXPECT_EQ(Read(fill.size()), fill);
  ASSERT_TRUE(writer.Flush(absl::Minutes(1)));
  writer.WriteText("after\n");
  ASSERT_TRUE(writer.Flush(absl::Minutes(1)));
  pipe_ = FileDescriptor();
  const std::string rest = Read(4096);
  const std::string text = rest.substr(0, rest.find('\0'));
  EXPECT_THAT(text, StartsWith("line 100\nline 101\n"));
  EXPECT_THAT(text, HasSubstr("line 100\n{\"time\"")) << "the report is where the lines are missing";
  EXPECT_THAT(text, HasSubstr("889 log lines were dropped here"));
  EXPECT_THAT(text, EndsWith("\"lines\":889}\nafter\n"));
}

TEST_F(LogWriterTest, LinesThatTheDescriptorRefusesAreCounted) {
  reader_ = FileDescriptor();
  LogWriter writer({.descriptor = pipe_.get()});
  writer.WriteText("nowhere\n");
  EXPECT_TRUE(writer.Flush(absl::Minutes(1)));
  EXPECT_EQ(writer.dropped(), 1);
}

TEST_F(LogWriterTest, TheLevelSaysWhichLinesAreWritten) {
  const auto writer = std::make_shared<LogWriter>(LogWriterOptions{.descriptor = pipe_.get()});
  const EventLog log = LogTo(writer, LogLevel::kWarning);
  log("not this one");
  log({LogLevel::kError, "but this one"});
  ASSERT_TRUE(writer->Flush(absl::Minutes(1)));
  pipe_ = FileDescriptor();
  const std::string text = Read(4096);
  EXPECT_THAT(text, HasSubstr("but this one"));
  EXPECT_EQ(text.find("not this one"), std::string::npos);
}

}  // namespace
}  // namespace tessera::base
