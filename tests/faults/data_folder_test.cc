// Tests how a server handles a data folder that is removed or damaged, and which access rights it gives to its files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/jobs/sqlite.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DataFolderTest : public ::testing::Test {
 protected:
  DataFolderTest()
      : server_({.worker = FAKE_WORKER,
                 .script = "step-time=0",
                 .fake_workers = true,
                 .groups = {"{model: nowhere}"},
                 .settings = "drain_time: 10m\n"}) {}

  std::string data() const { return server_.folder() + "/data-fake"; }

  void Start() {
    ASSERT_TRUE(server_.Start());
    server_.WaitUntilReady();
  }

  // An image may be in the database alone when its job is done. A file has another name while it is written.
  void WaitForImageFile() {
    WaitUntil("its image has its file", [&] {
      for (const fs::directory_entry& folder : fs::directory_iterator(data() + "/images")) {
        if (!folder.is_directory()) continue;
        for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
          if (file.path().filename().string().find(".tessera-") == std::string::npos) return true;
        }
      }
      return false;
    });
  }

  // Runs a server that makes an image, and terminates it.
  void Use() {
    Start();
    EXPECT_EQ(server_.Ended(server_.Submit("apple")), "done");
    EXPECT_EQ(server_.Terminate(), 0);
  }

  TestServer server_;
};

TEST_F(DataFolderTest, ThatIsRemovedTakesNoJobsAndDoesNotKeepTheServerFromEnding) {
  Start();
  EXPECT_EQ(server_.Ended(server_.Submit("apple")), "done");
  WaitForImageFile();
  fs::remove_all(data());
  const TestResponse refused = server_.Call("POST", "/v1/jobs", R"({"prompt": "x", "size": "64x64"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"storage_unavailable")"));
  EXPECT_EQ(server_.Call("GET", "/readyz").status, 503);
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
  EXPECT_THAT(server_.process().errors(), HasSubstr("storage: moved: "));
  Use();
}

TEST_F(DataFolderTest, WithADamagedPageIsNotServed) {
  Use();
  {
    const std::string path = data() + "/jobs.sqlite";
    absl::StatusOr<std::unique_ptr<server::SqliteDatabase>> database = server::SqliteDatabase::Open({.path = path});
    ASSERT_TRUE(database.ok()) << database.status();
    absl::StatusOr<server::SqliteStatement> root =
        (*database)->Prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs_by_expiry'");
    ASSERT_TRUE(root.ok() && *root->Step());
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp((root->Int(0) - 1) * 4096);
    file << std::string(4096, '\xA5');
  }
  EXPECT_THAT(server_.ErrorsOfStart(), AllOf(HasSubstr("the job store's database is damaged"),
                                             HasSubstr("restore the data folder from a backup")));
}

TEST_F(DataFolderTest, WithImagesAndNoDatabaseIsNotANewOne) {
  Use();
  fs::remove(data() + "/jobs.sqlite");
  EXPECT_THAT(server_.ErrorsOfStart(),
              AllOf(HasSubstr("there are images, but"), HasSubstr("restore the data folder from a backup")));
  EXPECT_FALSE(fs::exists(data() + "/jobs.sqlite"));
}

TEST_F(DataFolderTest, HoldsNoMoreBytesOfImagesThanItMayButTheLastJob) {
  server_.options().settings += "retention_bytes: 1\n";
  Start();
  const std::string first = server_.Submit("apple");
  WaitUntil("its end", [&] { return server_.StatusOf(first) == "done" || server_.StatusOf(first) == "HTTP 404"; });
  const std::string second = server_.Submit("pear");
  WaitUntil("the first one is gone", [&] { return server_.StatusOf(first) == "HTTP 404"; });
  EXPECT_EQ(server_.Ended(second), "done");
  EXPECT_EQ(server_.ImageBytes(server_.Get(second)).substr(1, 3), "PNG");
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(DataFolderTest, IsReadableByNoOtherUserWhateverTheUmask) {
  server_.Write("trace.json", "of before");  // readable by everybody
  const mode_t before = umask(0);
  Start();
  umask(before);
  EXPECT_EQ(server_.Ended(server_.Submit("apple")), "done");
  WaitForImageFile();
  const auto readers = [](const fs::path& path) {
    return fs::status(path).permissions() & (fs::perms::group_all | fs::perms::others_all);
  };
  int files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(data())) {
    EXPECT_EQ(readers(entry), fs::perms::none) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_GE(files, 5) << "database, log, lock, image and the record of the workers";
  EXPECT_EQ(readers(data()), fs::perms::none);
  EXPECT_EQ(readers(server_.folder() + "/trace.json"), fs::perms::none);
  for (const fs::directory_entry& entry : fs::directory_iterator(server_.folder() + "/sockets")) {
    EXPECT_EQ(readers(entry), fs::perms::none) << entry.path();
  }
  EXPECT_EQ(server_.Terminate(), 0);
}

}  // namespace
}  // namespace tessera
