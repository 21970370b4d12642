// Tests a server in use whose disk becomes full: its database can still write to the existing log file, but results
// cannot be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The log size, 1,000 pages, from which the database restarts the log at its beginning.
constexpr uint64_t kLogInUse = 4'000'000;
constexpr char kSmall[] = R"(, "num_inference_steps": 1)";

class FullDiskTest : public ::testing::Test {
 protected:
  FullDiskTest()
      : server_({.worker = FAKE_WORKER,
                 .fake_workers = true,
                 .groups = {"{model: nowhere}"},
                 .settings = "drain_time: 10m\ncommitted_image_bytes: 0\n",
                 .admin = "{port: 0}"}) {
    server_.options().script = absl::StrCat("step-time=0 gate=", server_.folder(), "/gate");
    server_.options().environment = {
        {"LD_PRELOAD", FULL_DISK_LIBRARY}, {"FULL_DISK", server_.folder() + "/full"}, {"FULL_DISK_FOLDER", data()}};
  }

  std::string data() const { return server_.folder() + "/data-fake"; }
  void Fill() const { server_.Write("full", ""); }
  void MakeRoom() const { fs::remove(server_.folder() + "/full"); }

  // Submits jobs until the database has restarted its log, that is, until a job does not make the log longer. The
  // database delays the restart while the log has readers.
  void UseLog() {
    const auto log_bytes = [&] {
      std::error_code error;
      const auto bytes = fs::file_size(data() + "/jobs.sqlite-wal", error);
      return error ? 0 : bytes;
    };
    // One job at a time: jobs that wait would fill the log again after its restart.
    const auto run = [&] {
      EXPECT_EQ(server_.Ended(server_.Submit("x", absl::StrCat(kSmall, R"(, "n": 10)"))), "done");
    };
    while (log_bytes() < kLogInUse && !HasFailure()) run();
    for (uintmax_t before = 0; before < log_bytes() && !HasFailure();) {
      before = log_bytes();
      run();
    }
  }

  boost::json::object Info() {
    const TestResponse response = server_.Call("GET", "/v1/server");
    return response.status == 200 ? boost::json::parse(response.body).as_object()
                                  : boost::json::object{{"running_jobs", -1}, {"queued_jobs", -1}};
  }

  // Checks the server's state while `images` images are stuck. One of them belongs to job `stuck`.
  void ExpectFull(const std::string& stuck, int images) {
    WaitUntil("not ready", [&] { return server_.Call("GET", "/readyz").status == 503; });
    for (const char* path : {"/v1/jobs", "/v1/images/generations"}) {
      const TestResponse refused = server_.Call("POST", path, R"({"prompt": "x", "size": "64x64"})");
      EXPECT_EQ(refused.status, 503) << path;
      EXPECT_THAT(refused.body, HasSubstr(R"("code":"storage_full")")) << path;
      EXPECT_EQ(refused.Header("Retry-After"), "5") << path;
    }
    EXPECT_EQ(server_.StatusOf(stuck), "running");
    WaitUntil("only what is stuck runs", [&] { return Info().at("running_jobs") == images; });
    EXPECT_EQ(Info().at("queued_jobs"), 0);
    HttpTestClient admin(server_.admin_port());
    EXPECT_THAT(admin.Call("GET", "/metrics", "", {}).body, HasSubstr("tessera_storage_state{state=\"full\"} 1"));
  }

  // Returns whether an image file contains exactly `bytes`.
  bool HasFile(const std::string& bytes) const {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(data() + "/images")) {
      std::ifstream file(entry.path(), std::ios::binary);
      if (entry.is_regular_file() && std::string(std::istreambuf_iterator<char>(file), {}) == bytes) return true;
    }
    return false;
  }

  TestServer server_;
};

int LinesWith(const std::string& text, const std::string& lines) {
  int count = 0;
  for (const auto line : absl::StrSplit(lines, '\n')) count += absl::StrContains(line, text);
  return count;
}

TEST_F(FullDiskTest, IsNoticedByAServerInUseWhichLosesNothingAndEndsOnASignal) {
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  UseLog();
  Fill();
  const std::string first = server_.Submit("x", kSmall);  // the log has room for it
  ExpectFull(first, 1);
  MakeRoom();
  server_.WaitUntilReady();
  EXPECT_EQ(server_.Ended(first), "done");

  const std::string second = server_.Submit("gated", kSmall);
  HttpTestClient caller(server_.port());
  const std::string body = absl::StrCat(R"({"prompt": "gated", "size": "64x64")", kSmall, "}");
  caller.Send(
      absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   "Content-Length: ",
                   body.size(), "\r\n\r\n", body));
  WaitUntil("both are accepted", [&] {
    const boost::json::object info = Info();
    return info.at("running_jobs").to_number<int>() + info.at("queued_jobs").to_number<int>() == 2;
  });
  Fill();
  server_.Write("gate", "");
  ExpectFull(second, 2);
  const TestResponse refused = caller.ReadResponse();
  EXPECT_EQ(refused.status, 503) << "it does not wait for ever";
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"storage_full")"));
  WaitUntil("its job is cancelled", [&] { return Info().at("running_jobs") == 1; });
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0) << "long before its drain time is over";
  const std::string log = server_.process().errors();
  EXPECT_EQ(LinesWith("storage: full: ", log), 2) << "one for each time: " << log;
  EXPECT_EQ(LinesWith("data-fake/images/", log), 2) << "a result had no room, the log of the database had: " << log;
  EXPECT_EQ(LinesWith("storage: ok again", log), 1) << log;

  MakeRoom();
  ASSERT_TRUE(server_.Start());
  EXPECT_EQ(server_.Ended(second), "done");
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(FullDiskTest, ServesAnImageThatHasNoRoomForItsFileYetFromTheDatabase) {
  server_.options().settings = "drain_time: 10m\n";
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  UseLog();
  const std::string gated = server_.Submit("gated", kSmall);
  WaitUntil("it runs", [&] { return server_.StatusOf(gated) == "running"; });
  Fill();
  server_.Write("gate", "");
  EXPECT_EQ(server_.Ended(gated), "done") << "the log of the database has room";
  const std::string image = server_.ImageBytes(server_.Get(gated));
  EXPECT_EQ(image.substr(1, 3), "PNG");
  WaitUntil("not ready", [&] { return server_.Call("GET", "/readyz").status == 503; });
  EXPECT_EQ(server_.ImageBytes(server_.Get(gated)), image);
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
  EXPECT_EQ(LinesWith("storage: full: ", server_.process().errors()), 1) << server_.process().errors();

  MakeRoom();
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  EXPECT_EQ(server_.ImageBytes(server_.Get(gated)), image);
  EXPECT_EQ(server_.Terminate(), 0);
  EXPECT_TRUE(HasFile(image)) << "a server that ends leaves no image in its database";
}

}  // namespace
}  // namespace tessera
