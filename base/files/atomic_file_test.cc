#include "base/files/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using std::string_literals::operator""s;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class AtomicFileTest : public testing::Test {
 protected:
  ~AtomicFileTest() override { ::chmod(folder_.path().c_str(), 0700); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  static std::string Content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TestFolder folder_;
};

// Returns the result of WriteFileAtomically in a child process that has first called `prepare`.
absl::Status WriteInChild(const std::string& path, const std::string& bytes, const std::function<void()>& prepare) {
  int ends[2];
  if (::pipe(ends) != 0) return absl::InternalError("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    prepare();
    const absl::Status status = WriteFileAtomically(path, bytes);
    const std::string message(status.message());
    const bool reported = ::write(ends[1], message.data(), message.size()) == static_cast<ssize_t>(message.size());
    ::_exit(reported ? static_cast<int>(status.code()) : 99);
  }
  ::close(ends[1]);
  std::string message;
  char part[512];
  for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof(part))) > 0;)
    message.append(part, static_cast<size_t>(got));
  ::close(ends[0]);
  int exit = 0;
  ::waitpid(child, &exit, 0);
  if (!WIFEXITED(exit)) return absl::InternalError("the child was killed");
  return absl::Status(static_cast<absl::StatusCode>(WEXITSTATUS(exit)), message);
}

void LimitFileSize() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

// The superuser may write anywhere, so drop its rights.
void BecomeUnprivileged() {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(98);
}

TEST_F(AtomicFileTest, FileHoldsExactlyTheBytesAndNothingElseIsLeft) {
  const std::string bytes = "\0\xFF line\n"s + std::string(1'000'000, 'x');
  ASSERT_TRUE(WriteFileAtomically(Path("a.png"), bytes).ok());
  EXPECT_EQ(Content(Path("a.png")), bytes);
  EXPECT_THAT(Names(), ElementsAre("a.png"));
}

TEST_F(AtomicFileTest, EmptyFileIsWritten) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "").ok());
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(AtomicFileTest, PermissionsFollowTheUmask) {
  const mode_t before = ::umask(0027);
  const absl::Status status = WriteFileAtomically(Path("a"), "x");
  ::umask(before);
  ASSERT_TRUE(status.ok()) << status;
  struct stat written;
  ASSERT_EQ(::stat(Path("a").c_str(), &written), 0);
  EXPECT_EQ(written.st_mode & 0777, 0640u);
}

TEST_F(AtomicFileTest, ExistingFileIsReplacedWhole) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "a longer old content").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new").ok());
  EXPECT_EQ(Content(Path("a")), "new");
}

TEST_F(AtomicFileTest, ManyFilesAreWrittenTogetherAndNothingElseIsLeft) {
  std::filesystem::create_directory(Path("below"));
  std::ofstream(Path("b")) << "of before";
  const WriteFileOptions private_files{.owner_only = true};
  ASSERT_EQ(WriteFilesAtomically({{Path("a"), "first"}, {Path("b"), "second"}, {Path("below/c"), ""}}, private_files),
            absl::OkStatus());
  EXPECT_EQ(Content(Path("a")), "first");
  EXPECT_EQ(Content(Path("b")), "second");
  EXPECT_EQ(Content(Path("below/c")), "");
  EXPECT_THAT(Names(), ElementsAre("a", "b", "below"));
  struct stat status;
  ASSERT_EQ(::stat(Path("b").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  // A file that cannot be written leaves the others unchanged, or written completely.
  const absl::Status refused = WriteFilesAtomically({{Path("a"), "third"}, {Path("nowhere/d"), "fourth"}});
  EXPECT_THAT(std::string(refused.message()), HasSubstr("nowhere"));
  EXPECT_EQ(Content(Path("a")), "first");
  EXPECT_THAT(Names(), ElementsAre("a", "b", "below"));
}

TEST_F(AtomicFileTest, ExistingFileIsKeptWhereOverwritingIsNotWanted) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  const absl::Status status = WriteFileAtomically(Path("a"), "new", {.overwrite = false});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Content(Path("a")), "old");
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(AtomicFileTest, NewFileIsWrittenWhereOverwritingIsNotWanted) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new", {.overwrite = false}).ok());
  EXPECT_EQ(Content(Path("a")), "new");
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(AtomicFileTest, ExactlyOneOfManyWritersWinsWhereOverwritingIsNotWanted) {
  std::vector<absl::Status> results(8);
  std::vector<std::thread> writers;
  for (size_t i = 0; i < results.size(); ++i) {
    writers.emplace_back(
        [&, i] { results[i] = WriteFileAtomically(Path("a"), std::to_string(i), {.overwrite = false}); });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(std::count_if(results.begin(), results.end(), [](const absl::Status& s) { return s.ok(); }), 1);
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(AtomicFileTest, MissingFolderIsNamed) {
  const absl::Status status = WriteFileAtomically(Path("missing/a.png"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(Path("missing/a.png")));
  EXPECT_THAT(status.message(), HasSubstr("the folder \"" + Path("missing") + "\" does not exist"));
}

TEST_F(AtomicFileTest, FileInPlaceOfTheFolderIsNamed) {
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "x").ok());
  EXPECT_THAT(WriteFileAtomically(Path("file/a.png"), "x").message(), HasSubstr(Path("file") + "\" is not a folder"));
}

TEST_F(AtomicFileTest, FolderInPlaceOfTheFileIsRefused) {
  std::filesystem::create_directory(Path("a.png"));
  EXPECT_THAT(WriteFileAtomically(Path("a.png"), "x").message(), HasSubstr("a folder of that name exists"));
  EXPECT_THAT(Names(), ElementsAre("a.png"));
}

TEST_F(AtomicFileTest, DeviceIsNeverReplaced) {
  std::filesystem::create_symlink("/dev/full", Path("full.png"));
  EXPECT_THAT(WriteFileAtomically(Path("full.png"), "x").message(), HasSubstr("not a regular file"));
  EXPECT_THAT(Names(), ElementsAre("full.png"));
}

TEST_F(AtomicFileTest, PathsThatNameNoFileAreRefused) {
  for (const std::string& path : {""s, Path(""), Path("."), Path(".."), Path("a\0b"s)}) {
    EXPECT_EQ(WriteFileAtomically(path, "x").code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(AtomicFileTest, NameThatIsTooLongIsNamedAndLeavesNothing) {
  EXPECT_THAT(WriteFileAtomically(Path(std::string(300, 'x')), "x").message(), HasSubstr("name is too long"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(AtomicFileTest, ReadOnlyFolderIsNamed) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0555), 0);
  const absl::Status status = WriteInChild(Path("a.png"), "x", BecomeUnprivileged);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("no permission to write in \"" + folder_.path()));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(AtomicFileTest, WriteThatFailsHalfwayKeepsTheOldFileAndLeavesNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(Path("a.png"), "old").ok());
  const absl::Status status = WriteInChild(Path("a.png"), std::string(100'000, 'x'), LimitFileSize);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(Path("a.png")));
  EXPECT_EQ(Content(Path("a.png")), "old");
  EXPECT_THAT(Names(), ElementsAre("a.png"));
}

}  // namespace
}  // namespace tessera::base
