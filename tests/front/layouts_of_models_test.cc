// `tessera layouts` with the real worker: what it tells of a model's transformer is what the model has.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>

#include "tests/front/child_process.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class LayoutsOfModelsTest : public ::testing::Test {
 protected:
  LayoutsOfModelsTest() {
    char folder[] = "/tmp/tessera-test-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  ~LayoutsOfModelsTest() override { fs::remove_all(folder_); }

  boost::json::value List(const std::string& model) const {
    ChildOptions options;
    options.arguments = {TESSERA_EXECUTABLE, "layouts", "--model", "tests/golden/pipelines/" + model,
                         "--ranks=2",        "--json"};
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"TESSERA_CERTIFICATES", folder_},
                           {"XDG_RUNTIME_DIR", folder_}};
    ChildProcess child(options);
    const int exit_code = child.Wait();
    EXPECT_EQ(exit_code, 0) << child.errors();
    return exit_code == 0 ? boost::json::parse(child.output()) : nullptr;
  }

  static int64_t SentByAll(const boost::json::value& list, const std::string& text) {
    for (const boost::json::value& layout : list.at("layouts").as_array()) {
      if (layout.at("layout") != text.c_str()) continue;
      return layout.at("sent_bytes_least").to_number<int64_t>() + layout.at("sent_bytes_most").to_number<int64_t>();
    }
    return -1;
  }

 private:
  std::string folder_;
};

// By hand from the model's configuration and docs/parallelism.md: 8 x 8 image tokens of 64 channels and 64 output
// features beside 77 + 256 of text, two rows in fp32. Both ranks together send B e D (Q + K) for an attention, and
// B e n F at the end; nothing reads the text behind the last of three blocks.
TEST_F(LayoutsOfModelsTest, StableDiffusion3) {
  const boost::json::value list = List("sd3");
  ASSERT_TRUE(list.is_object());
  EXPECT_EQ(list.at("image_tokens"), 64);
  EXPECT_EQ(list.at("text_tokens"), 333);
  EXPECT_EQ(list.at("rows"), 2);
  EXPECT_EQ(SentByAll(list, "ulysses=2"), 2 * 4 * 64 * (2 * (397 + 397) + 64 + 397) + 2 * 4 * 64 * 64);
}

// 64 x 64 image tokens of 64 channels and 2 * 2 * 8 output features in two rows. Between two stages of two blocks each
// go the image's state and the long skip from the first block to the last; the last stage sends the result.
TEST_F(LayoutsOfModelsTest, HunyuanDiT) {
  const boost::json::value list = List("hunyuan11");
  ASSERT_TRUE(list.is_object());
  EXPECT_EQ(list.at("width"), 1024);
  EXPECT_EQ(list.at("image_tokens"), 64 * 64);
  EXPECT_EQ(SentByAll(list, "pipe=2"), 2 * 4 * 64 * 64 * (64 + 64 + 32));
}

// Its guidance is built in: one row.
TEST_F(LayoutsOfModelsTest, Flux) {
  const boost::json::value list = List("flux_dev");
  ASSERT_TRUE(list.is_object());
  EXPECT_EQ(list.at("rows"), 1);
  EXPECT_EQ(list.at("text_tokens"), 512);
}

}  // namespace
}  // namespace tessera
