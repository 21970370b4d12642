#include "base/files/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::base {
namespace {

constexpr int kLost = 5;

// Returns the exit code of a process that starts with these streams closed and runs `work`.
int CodeOf(const std::vector<int>& closed, const std::function<void()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const int stream : closed) close(stream);
    work();
    _exit(111);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void WriteTo(const char* path, const char* text) {
  std::FILE* const output = std::freopen(path, "w", stdout);
  if (output == nullptr) _exit(112);
  std::fputs(text, output);
}

TEST(StandardStreamsTest, ClosedOnesTakeNoNumbersOfFiles) {
  const int code = CodeOf({0, 1, 2}, [] {
    OpenStandardStreams();
    const int opened = open("/dev/zero", O_RDONLY);
    bool null = true;
    for (const char* stream : {"/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"}) {
      null = null && std::filesystem::read_symlink(stream) == "/dev/null";
    }
    char byte = 0;
    const bool reads = read(0, &byte, 1) == 0, writes = write(2, "x", 1) == 1;
    _exit(opened > 2 && null && reads && writes ? 0 : 1);
  });
  EXPECT_EQ(code, 0);
}

TEST(StandardStreamsTest, OpenOnesStayWhatTheyAre) {
  const std::string before = std::filesystem::read_symlink("/proc/self/fd/1");
  OpenStandardStreams();
  EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/1"), before);
}

TEST(EndProcessTest, OutputThatIsLostIsAnError) {
  const auto end_with = [](int code, const char* path, const char* text) {
    return CodeOf({}, [=] {
      WriteTo(path, text);
      EndProcess(code, kLost);
    });
  };
  EXPECT_EQ(end_with(0, "/dev/full", "x"), kLost);
  EXPECT_EQ(end_with(3, "/dev/full", "x"), 3) << "the command's own error counts";
  EXPECT_EQ(end_with(0, "/dev/full", ""), 0) << "nothing is lost";
  EXPECT_EQ(end_with(0, "/dev/null", "x"), 0);
}

TEST(EndProcessTest, SoIsOutputThatWasLostBeforeTheEnd) {
  EXPECT_EQ(CodeOf({},
                   [] {
                     WriteTo("/dev/full", "x");
                     std::fflush(stdout);
                     EndProcess(0, kLost);
                   }),
            kLost);
}

TEST(EndProcessTest, SoIsWhatIsWrittenToAClosedStream) {
  EXPECT_EQ(CodeOf({1},
                   [] {
                     OpenStandardStreams();
                     std::puts("x");
                     EndProcess(0, kLost);
                   }),
            kLost);
  EXPECT_EQ(CodeOf({1},
                   [] {
                     OpenStandardStreams();
                     Announce("for whoever reads it");
                     EndProcess(0, kLost);
                   }),
            0);
}

TEST(EndProcessTest, AReaderThatHasGoneIsNone) {
  EXPECT_EQ(CodeOf({},
                   [] {
                     signal(SIGPIPE, SIG_IGN);
                     int ends[2];
                     if (pipe(ends) != 0 || dup2(ends[1], 1) != 1) _exit(112);
                     close(ends[0]);
                     close(ends[1]);
                     std::puts("x");
                     std::fflush(stdout);
                     EndProcess(0, kLost);
                   }),
            0);
}

}  // namespace
}  // namespace tessera::base
