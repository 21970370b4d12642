// Serves a model of each newer family with real workers, from folders as they are published.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ServedFamiliesTest, ModelsOfNewerFamiliesMakeImages) {
  const std::string pipelines = std::filesystem::current_path().string() + "/tests/golden-newer/pipelines/";
  TestServerOptions options{.worker = REAL_WORKER};
  for (const char* const model : {"z_image_base", "flux2_klein", "qwen_image"}) {
    options.groups.push_back(absl::StrCat("{model: ", pipelines, model, ", name: ", model, ", threads: 1}"));
  }
  TestServer server(options);
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();  // each has made a picture then
  const std::string steps = R"(, "num_inference_steps": 2, "model": )";
  EXPECT_EQ(server.Ended(server.Submit("pear", steps + R"("z_image_base", "cfg_normalization": 1)")), "done");
  EXPECT_EQ(server.Ended(server.Submit("pear", steps + R"("z_image_base", "cfg_truncation": 0.5)")), "done");
  EXPECT_EQ(server.Ended(server.Submit("pear", steps + R"("flux2_klein")")), "done");
  EXPECT_EQ(
      server.Ended(server.Submit("pear", steps + R"("qwen_image", "true_cfg_scale": 4, "negative_prompt": "a cat")")),
      "done");
  const TestResponse refused =
      server.Call("POST", "/v1/jobs", R"({"prompt": "pear", "model": "qwen_image", "cfg_truncation": 0.5})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("this model does not read it"));
  // The last step of its schedule must begin below pure noise.
  const TestResponse short_schedule =
      server.Call("POST", "/v1/images/generations",
                  R"({"prompt": "pear", "model": "qwen_image", "size": "64x64", "num_inference_steps": 1})");
  EXPECT_EQ(short_schedule.status, 400) << short_schedule.body;
  EXPECT_THAT(short_schedule.body, HasSubstr("take at least 2 steps"));
}

#if DECODES_PICTURES
// Returns a picture as a request has it.
std::string Picture(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_FALSE(bytes.empty()) << file;
  return absl::StrCat(R"({"data": ")", absl::Base64Escape(bytes), "\"}");
}

TEST(ServedFamiliesTest, AModelThatEditsPicturesTakesUpToThree) {
  const std::string pipelines = std::filesystem::current_path().string() + "/tests/golden-edit/pipelines/";
  TestServerOptions options{.worker = REAL_WORKER};
  options.groups.push_back(absl::StrCat("{model: ", pipelines, "qwen_edit_2511, name: edit, threads: 1}"));
  TestServer server(options);
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  const std::string tiny = Picture("tests/golden-edit/images/tiny.png");
  const auto body = [&](const std::string& images) {
    return absl::StrCat(
        R"({"prompt": "a red hat", "negative_prompt": "blurred", "true_cfg_scale": 3, "size": "64x64", )",
        R"("num_inference_steps": 2, "images": [)", images, "]}");
  };
  const TestResponse accepted = server.Call("POST", "/v1/jobs", body(absl::StrCat(tiny, ", ", tiny)));
  ASSERT_EQ(accepted.status, 202) << accepted.body;
  EXPECT_EQ(server.Ended(std::string(boost::json::parse(accepted.body).at("id").as_string())), "done");
  const TestResponse none = server.Call("POST", "/v1/jobs", body(""));
  EXPECT_EQ(none.status, 400);
  EXPECT_THAT(none.body, HasSubstr("this model edits images"));
  const TestResponse many =
      server.Call("POST", "/v1/jobs", body(absl::StrCat(tiny, ", ", tiny, ", ", tiny, ", ", tiny)));
  EXPECT_EQ(many.status, 400);
  EXPECT_THAT(many.body, HasSubstr("at most 3"));
}
#endif

}  // namespace
}  // namespace tessera
