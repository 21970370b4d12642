// Tests `tessera serve` with a group on a fake GPU, from the request to the image, and what happens to a job and its
// group when the device runs out of memory or fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/cuda/full_size_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/faults/test_server.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"
#include "tests/support/fault_runs.h"
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

// A model and its text encoder of full size, on a card on which the encoder and blocks of the transformer wait in main
// memory.
struct WaitingModel {
  const char* name;
  void (*write)(const TestFolder&);
  int64_t mib;
  bool is_long;  // many GB are copied to main memory
};

std::ostream& operator<<(std::ostream& out, const WaitingModel& model) { return out << model.name; }

class SecondPictureTest : public ::testing::TestWithParam<WaitingModel> {
 protected:
  // Returns the log of a worker that makes two pictures of three steps each, with prompts of their own.
  FakeCudaLog MakeTwoPictures() const {
    TestServer server({.groups = {absl::StrCat("{model: ", folder_ / GetParam().name,
                                               ", devices: [cuda:0], layout: serial, dtype: bf16}")},
                       .environment = {{"LD_PRELOAD", FAKE_CUDA_LIBRARY},
                                       {"FAKE_CUDA_LOG", folder_ / "log"},
                                       {"FAKE_CUDA_MEMORY_MIB", absl::StrCat(GetParam().mib)},
                                       {"FAKE_CUDA_CONTEXT_MIB", "512"},
                                       {"FAKE_CUDA_CLOCK", "1"}}});
    EXPECT_TRUE(server.Start());
    server.WaitUntilReady();
    for (const char* prompt : {"apple", "pear"}) {
      const TestResponse response =
          server.Call("POST", "/v1/jobs",
                      absl::StrCat(R"({"num_inference_steps": 3, "size": "1024x1024", "prompt": ")", prompt, "\"}"));
      EXPECT_EQ(response.status, 202) << response.body;
      if (response.status != 202) break;
      EXPECT_EQ(server.Ended(std::string(boost::json::parse(response.body).at("id").as_string())), "done");
    }
    EXPECT_EQ(server.Terminate(), 0);
    const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(folder_ / "log");
    EXPECT_EQ(logs.size(), 1u);
    return logs.size() == 1 ? logs.front() : FakeCudaLog();
  }

  int64_t EncoderBytes() const {
    int64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / GetParam().name + "/text_encoder")) {
      bytes += static_cast<int64_t>(file.file_size());
    }
    return bytes;
  }

  const TestFolder folder_;
};

bool CopiesToDevice(const FakeCudaEvent& event) {
  return event.kind == "copy" && event.fields[1] == "H2D" && event.Number(2) >= (1 << 20);
}

// The second picture's denoising has begun once the first block attends to its tokens.
TEST_P(SecondPictureTest, BeginsToDenoiseWhileItsWeightsArrive) {
  if (GetParam().is_long && !IsLongRun()) GTEST_SKIP() << "many GB are copied to main memory";
  GetParam().write(folder_);
  const FakeCudaLog log = MakeTwoPictures();
  EXPECT_THAT(log.Faults(), IsEmpty());
  constexpr int64_t kSteps = 3, kPictureTokens = 4096, kLatentPixels = 16384;  // of 1024x1024 pixels
  // A warm-up may precede the first picture, so steps are counted from the last.
  const int64_t before = std::ranges::count_if(log.events(), FakeCudaLog::EndsStep) - kSteps;
  int64_t steps = 0, copied_in_step = 0, copied_between = 0, begin = 0, end = 0;
  bool decodes = false;  // the first picture is being or has been decoded, by weights that were copied before
  const FakeCudaEvent* busy = nullptr;
  for (const FakeCudaEvent& event : log.events()) {
    steps += FakeCudaLog::EndsStep(event);
    if (event.kind == "busy") busy = &event;
    if (CopiesToDevice(event)) {
      copied_in_step += steps == before + 1 ? event.Number(2) : 0;
      copied_between += decodes && end == 0 ? event.Number(2) : 0;
      if (decodes && begin == 0) begin = busy->Number(2);
    }
    if (steps != before) continue;
    if (FakeCudaLog::Attends(event, kLatentPixels)) {
      decodes = true;
    } else if (decodes && end == 0 && FakeCudaLog::Attends(event, kPictureTokens)) {
      end = busy->Number(2);
    }
  }
  const int64_t encoder = EncoderBytes();
  constexpr double kBytesPerNanosecond = 50;  // of the fake's link
  const double transfer = static_cast<double>(encoder + copied_in_step) / kBytesPerNanosecond;
  std::cout << GetParam().name << ": " << end - begin << " ns until the second picture's first attention, "
            << copied_between << " bytes copied; transfer of the encoder's " << encoder << " and the transformer's "
            << copied_in_step << " bytes: " << static_cast<int64_t>(transfer) << " ns\n";
  ASSERT_GT(begin, 0);
  ASSERT_GT(end, begin);
  EXPECT_GT(copied_in_step, 0) << "no block waits";
  EXPECT_GT(static_cast<double>(copied_between), 0.9 * static_cast<double>(encoder)) << "the encoder does not wait";
  EXPECT_LE(static_cast<double>(end - begin), 1.15 * transfer);
}

INSTANTIATE_TEST_SUITE_P(
    Models, SecondPictureTest,
    testing::Values(WaitingModel{"pixart_sigma", [](const TestFolder& folder) { WritePixartSigmaWithT5(folder, 4); },
                                 2560, false},
                    WaitingModel{"flux2_klein", WriteWholeKlein, 8192, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
