// Tests `tessera serve` with a group on a fake GPU, from the request to the image, and what happens to a job and its
// group when the device runs out of memory or fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/faults/test_server.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeCudaServeTest : public ::testing::Test {
 protected:
  // Starts a server with a group on `devices` cards. `cards` contains the fake's own variables.
  TestServer& Serve(int devices, const std::string& layout, std::map<std::string, std::string> cards = {}) {
    cards.insert({{"LD_PRELOAD", FAKE_CUDA_LIBRARY},
                  {"FAKE_CUDA_LOG", folder_ / "log"},
                  {"FAKE_CUDA_CARDS", folder_ / "card"},
                  {"FAKE_CUDA_DEVICES", absl::StrCat(devices)},
                  {"FAKE_CUDA_FAULT", fault_}});
    std::string names;
    for (int i = 0; i < devices; ++i) absl::StrAppend(&names, i == 0 ? "" : ", ", "cuda:", i);
    const std::string model = std::filesystem::current_path().string() + "/tests/golden/pipelines/flux_dev";
    server_ = std::make_unique<TestServer>(TestServerOptions{
        .groups = {absl::StrCat("{model: ", model, ", devices: [", names, "], layout: \"", layout, "\"}")},
        .environment = cards});
    EXPECT_TRUE(server_->Start());
    server_->WaitUntilReady();
    return *server_;
  }

  static std::string Submit(TestServer& server, int side) {
    const TestResponse response =
        server.Call("POST", "/v1/jobs",
                    absl::StrCat(R"({"prompt": "apple", "num_inference_steps": 3, "size": ")", side, "x", side, "\"}"));
    EXPECT_EQ(response.status, 202) << response.body;
    return response.status == 202 ? std::string(boost::json::parse(response.body).at("id").as_string()) : "";
  }

  void ExpectMakesPictures(TestServer& server) {
    const std::string job = Submit(server, 64);
    ASSERT_EQ(server.Ended(job), "done") << boost::json::serialize(server.Get(job));
    const absl::StatusOr<server::DecodedImage> image = server::DecodeImage(server.ImageBytes(server.Get(job)));
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->image.width, 64);
  }

  static int64_t Restarts(TestServer& server) { return server.Group().at("restarts").to_number<int64_t>(); }

  const TestFolder folder_;
  const std::string fault_ = folder_ / "fault";  // see machine.h
  std::unique_ptr<TestServer> server_;
};

TEST_F(FakeCudaServeTest, ARequestBecomesAPictureOfTheDevice) {
  TestServer& server = Serve(1, "serial");
  ExpectMakesPictures(server);
  EXPECT_EQ(server.Terminate(), 0);
  const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(folder_ / "log");
  ASSERT_EQ(logs.size(), 1u);
  EXPECT_THAT(logs[0].Faults(), IsEmpty());
  EXPECT_GE(logs[0].Steps().size(), 3u);
}

TEST_F(FakeCudaServeTest, AJobThatRunsOutOfDeviceMemoryFailsAlone) {
  // The load plan accounts for an image of the model's default size, but not for a larger one. The process's context
  // takes 520 MiB.
  TestServer& server = Serve(1, "serial", {{"FAKE_CUDA_MEMORY_MIB", "1576"}});
  const std::string large = Submit(server, 4096);
  EXPECT_EQ(server.Ended(large), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(large)), HasSubstr("out of memory on the device"));
  ExpectMakesPictures(server);
  EXPECT_EQ(Restarts(server), 0);
}

TEST_F(FakeCudaServeTest, AFailedDeviceEndsItsGroupWhichComesBack) {
  for (const int devices : {1, 2}) {
    TestServer& server = Serve(devices, devices == 1 ? "serial" : "ulysses=2");
    ExpectMakesPictures(server);
    folder_.Write("fault", "200");
    const std::string job = Submit(server, 64);
    EXPECT_EQ(server.Ended(job), "done") << "another attempt, on the group that came back";
    EXPECT_EQ(Restarts(server), 1);
    ExpectMakesPictures(server);
    EXPECT_EQ(Restarts(server), 1);
    server_.reset();
  }
}

}  // namespace
}  // namespace tessera
