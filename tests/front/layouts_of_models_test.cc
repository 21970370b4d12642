// Layouts with the real worker: what is told of a model's transformer is what the model has.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class LayoutsOfModelsTest : public ::testing::Test {
 protected:
  boost::json::value List(const std::string& model) const {
    return RunForJson({"layouts", "--model", "tests/golden/pipelines/" + model, "--ranks=2", "--json"});
  }

  // What a command that ends well prints last.
  boost::json::value RunForJson(const std::vector<std::string>& arguments) const {
    std::string output = Run(arguments);
    if (!output.empty() && output.back() == '\n') output.pop_back();
    return output.empty() ? nullptr : boost::json::parse(output.substr(output.rfind('\n') + 1));
  }

  std::string Run(std::vector<std::string> arguments) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"TESSERA_CERTIFICATES", folder_.path()},
                           {"XDG_RUNTIME_DIR", folder_.path()}};
    ChildProcess child(options);
    const int exit_code = child.Wait();
    EXPECT_EQ(exit_code, 0) << child.errors();
    return exit_code == 0 ? child.output() : "";
  }

  static int64_t SentByAll(const boost::json::value& list, const std::string& text) {
    for (const boost::json::value& layout : list.at("layouts").as_array()) {
      if (layout.at("layout") != text.c_str()) continue;
      return layout.at("sent_bytes_least").to_number<int64_t>() + layout.at("sent_bytes_most").to_number<int64_t>();
    }
    return -1;
  }

  const std::string& folder() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

// By hand from the model's configuration and docs/parallelism.md: 8 x 8 image tokens of 64 channels and 64 output
// features beside 77 + 256 of text, two rows in fp32. Both ranks together send B e D (Q + K) for an attention, and
// B e n F at the end; nothing reads the text after the last of three blocks.
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

TEST_F(LayoutsOfModelsTest, VerifyRecordsEveryBlockOfEveryRank) {
  const std::string record = folder() + "/states";
  const boost::json::value verdict =
      RunForJson({"verify", "--model", "tests/golden/pipelines/sd3", "--layout", "pipe=2,ulysses=2", "--dtype", "fp64",
                  "--steps=3", "--threads=4", "--record", record, "--json", "-q"});
  ASSERT_TRUE(verdict.is_object());
  EXPECT_EQ(verdict.at("passed"), true);
  const boost::json::object& states = verdict.at("record").as_object();
  EXPECT_GT(states.at("states").to_number<int>(), 0);
  EXPECT_LT(states.at("farthest").to_number<double>(), 1e-12);
  EXPECT_EQ(states.at("complete"), true);
  EXPECT_EQ(states.count("parting"), 0u);
  for (const char* file : {"/serial/rank-0.record", "/layout/rank-0.record", "/layout/rank-3.record"}) {
    EXPECT_TRUE(fs::exists(record + file)) << file;
  }
  EXPECT_FALSE(fs::exists(record + "/serial/rank-1.record"));
}

TEST_F(LayoutsOfModelsTest, StreamedBlocksMakeTheSameImage) {
  std::string pictures[2];
  for (const bool streamed : {false, true}) {
    std::vector<std::string> arguments = {
        "generate", "a cat", "--model", "tests/golden/pipelines/sd3", "--seed=1",   "--steps=2",
        "--json",   "-q",    "-o",      folder() + "/picture.png",    "--overwrite"};
    if (streamed) arguments.push_back("--stream-blocks");
    Run(arguments);
    std::ifstream file(folder() + "/picture.png", std::ios::binary);
    pictures[streamed].assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_FALSE(pictures[0].empty());
  EXPECT_EQ(pictures[0], pictures[1]);
}

}  // namespace
}  // namespace tessera
