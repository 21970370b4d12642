// Tests clients of a real server that read stored images slowly: how much of the server's memory they hold, and what
// they receive if the file is removed in the meantime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/faults/holdings.h"
#include "tests/faults/test_server.h"
#include "tests/jobs/job_workload.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// More than the buffers at both ends of a connection hold.
constexpr size_t kLarge = 16 << 20;

class SlowReadersTest : public ::testing::Test {
 protected:
  SlowReadersTest()
      : server_({.worker = FAKE_WORKER,
                 .script = "step-time=0",
                 .fake_workers = true,
                 .groups = {"{model: nowhere}"},
                 .settings = "limits: {write_time: 10m}\n",  // longer than a slow machine takes for a test
                 .arguments = {"--no-supervisor"}}) {}

  // Starts a server with a stored image of `bytes` bytes.
  void StartWith(size_t bytes) {
    std::mt19937_64 random(bytes);
    while (picture_.size() < bytes) absl::StrAppend(&picture_, absl::Hex(random(), absl::kZeroPad16));
    ASSERT_NO_FATAL_FAILURE(Store());
    ASSERT_TRUE(server_.Start());
    server_.WaitUntilReady();
  }

  std::unique_ptr<HttpTestClient> SlowReader() {
    auto client = std::make_unique<HttpTestClient>(server_.port());
    client->Send(absl::StrCat("GET ", path_, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(client->ReadUntil("\r\n\r\n"),
                testing::AllOf(StartsWith("HTTP/1.1 200 OK"),
                               HasSubstr(absl::StrCat("Content-Length: ", picture_.size(), "\r\n"))));
    return client;
  }

  // Returns the rest of the body that the client receives.
  std::string RestOf(HttpTestClient& client) const { return client.ReadUntil(picture_.substr(picture_.size() - 64)); }

  TestServer server_;
  std::string picture_;
  std::string path_;  // of the image's URL
  fs::path file_;

 private:
  void Store() {
    const fs::path data = server_.folder() + "/data-fake";
    server::DiskResultStore files(data / "images");
    base::SystemClock clock;
    fs::create_directory(data);
    fs::permissions(data, fs::perms::owner_all);
    auto store = server::SqliteJobStore::Open({.path = data / "jobs.sqlite", .files = &files, .clock = &clock});
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Recover([](const server::QueuedTask&) {}).ok());
    const auto submitted = (*store)->Submit({.tenant = "anonymous", .request = SmallRequest(1)});
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const auto claimed = (*store)->Claim(submitted->job.tasks[0].id);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    ASSERT_TRUE((*store)->Finish(claimed->claim, picture_, {.width = 64, .height = 64, .layout = "serial"}).ok());
    const auto done = (*store)->Get("anonymous", submitted->job.id);
    ASSERT_TRUE(done.ok()) << done.status();
    path_ = absl::StrCat("/v1/images/", done->tasks[0].image->id);
    file_ = data / "images" / done->tasks[0].image->file;
  }
};

TEST_F(SlowReadersTest, HoldNoMoreThanTheBoundOfAllConnections) {
  constexpr size_t kReaders = 150;
  constexpr double kBoundMib = 4, kSlackMib = 20;  // of connections, threads and the heap; the images are 600 MiB
  ASSERT_NO_FATAL_FAILURE(StartWith(4 << 20));
  const auto resident = [&] { return HoldingsOf(server_.process().pid())->resident_mib; };
  EXPECT_TRUE(server_.Call("GET", path_).body == picture_);
  const double before = resident();
  std::vector<std::unique_ptr<HttpTestClient>> slow;
  for (size_t i = 0; i < kReaders; ++i) slow.push_back(SlowReader());
  EXPECT_TRUE(server_.Call("GET", path_).body == picture_) << "a fast reader meanwhile";
  const double during = resident();
  EXPECT_LT(during - before, kBoundMib + kSlackMib);
  for (HttpTestClient* client : {slow.front().get(), slow.back().get()}) {
    EXPECT_TRUE(RestOf(*client) == picture_) << "a slow one that goes on";
  }
  slow.clear();
  double after = 0;
  WaitUntil("memory given back", [&] { return (after = resident()) - before < kBoundMib + kSlackMib; });
  std::printf("%.1f MiB before, %.1f with %zu readers, %.1f after\n", before, during, kReaders, after);
}

TEST_F(SlowReadersTest, GetTheWholeOfAFileThatIsRemovedMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(StartWith(kLarge));
  const auto slow = SlowReader();
  ASSERT_TRUE(fs::remove(file_));
  EXPECT_TRUE(RestOf(*slow) == picture_);
  EXPECT_EQ(server_.Call("GET", path_).status, 500);
}

TEST_F(SlowReadersTest, WithoutDescriptorsToSpareGetLessThanTheLengthSaysOfAFileThatIsRemovedMeanwhile) {
  server_.options().open_files = 64;
  ASSERT_NO_FATAL_FAILURE(StartWith(kLarge));
  EXPECT_TRUE(server_.Call("GET", path_).body == picture_);
  std::vector<std::unique_ptr<HttpTestClient>> slow;
  for (int i = 0; i < 10; ++i) slow.push_back(SlowReader());
  EXPECT_LT(HoldingsOf(server_.process().pid())->descriptors, 64);
  ASSERT_TRUE(fs::remove(file_));
  const std::string got = RestOf(*slow.back());
  EXPECT_LT(got.size(), picture_.size());
  EXPECT_TRUE(got == picture_.substr(0, got.size()));
}

TEST_F(SlowReadersTest, GetLessThanTheLengthSaysOfAFileThatIsCutShortMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(StartWith(kLarge));
  const auto slow = SlowReader();
  fs::resize_file(file_, kLarge - 1);
  const std::string got = RestOf(*slow);
  EXPECT_LT(got.size(), picture_.size() - 1);
  EXPECT_TRUE(got == picture_.substr(0, got.size()));
  EXPECT_EQ(server_.Call("GET", path_).status, 500) << "before a byte of it is sent";
  WaitUntil("the log says so", [&] {
    return absl::StrContains(server_.process().errors(), "was not sent completely: the image's file was changed");
  });
}

}  // namespace
}  // namespace tessera
