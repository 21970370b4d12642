// Tests `tessera layouts` and `tessera verify` with the real worker: what they report must match the model's
// transformer.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/front/child_process.h"
#include "tests/support/sparse_flux_folder.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class LayoutsOfModelsTest : public ::testing::Test {
 protected:
  boost::json::value List(const std::string& model) const {
    return RunForJson({"layouts", "--model", "tests/golden/pipelines/" + model, "--ranks=2", "--json"});
  }

  // Returns the last output of a command that succeeds.
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

// Computed by hand from the model's configuration and docs/parallelism.md: 8 x 8 image tokens of 64 channels and 64
// output features, 77 + 256 text tokens, two rows in fp32. Both ranks together send B e D (Q + K) per attention and
// finally B e n F. The text after the last of three blocks is not used.
TEST_F(LayoutsOfModelsTest, StableDiffusion3) {
  const boost::json::value list = List("sd3");
  ASSERT_TRUE(list.is_object());
  EXPECT_EQ(list.at("image_tokens"), 64);
  EXPECT_EQ(list.at("text_tokens"), 333);
  EXPECT_EQ(list.at("rows"), 2);
  EXPECT_EQ(SentByAll(list, "ulysses=2"), 2 * 4 * 64 * (2 * (397 + 397) + 64 + 397) + 2 * 4 * 64 * 64);
}

// 64 x 64 image tokens of 64 channels and 2 * 2 * 8 output features in two rows. Two stages of two blocks each exchange
// the image's state and the long skip from the first block to the last; the last stage sends the result.
TEST_F(LayoutsOfModelsTest, HunyuanDiT) {
  const boost::json::value list = List("hunyuan11");
  ASSERT_TRUE(list.is_object());
  EXPECT_EQ(list.at("width"), 1024);
  EXPECT_EQ(list.at("image_tokens"), 64 * 64);
  EXPECT_EQ(SentByAll(list, "pipe=2"), 2 * 4 * 64 * 64 * (64 + 64 + 32));
}

// Guidance is built into the model, so there is one row.
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

// Certificates cover only layouts without adapters. The record shows that the images use the adapter: at scale 0 they
// equal those without it, at another scale they differ.
TEST_F(LayoutsOfModelsTest, VerifyTakesAdaptersAndKeepsNoCertificateOfThem) {
  const auto verify = [&](const std::string& record, const std::vector<std::string>& loras) {
    std::vector<std::string> arguments = {"verify",   "--model",         "tests/golden/pipelines/sd3",
                                          "--layout", "tensor=2",        "--dtype",
                                          "fp64",     "--steps=3",       "--threads=2",
                                          "--record", folder() + record, "--json",
                                          "-q"};
    for (const std::string& lora : loras) arguments.insert(arguments.end(), {"--lora", lora});
    return RunForJson(arguments);
  };
  const auto certificates = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder())) count += entry.path().extension() == ".json";
    return count;
  };
  const auto recorded = [&](const std::string& record) {
    std::ifstream file(folder() + record + "/serial/rank-0.record", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string adapter = "tests/golden-inputs/adapters/sd3_peft.safetensors";
  const boost::json::value with = verify("/with", {adapter + ":0.5"});
  ASSERT_TRUE(with.is_object());
  EXPECT_EQ(with.at("passed"), true);
  EXPECT_TRUE(with.at("certificate").is_null());
  ASSERT_EQ(with.at("loras").as_array().size(), 1u);
  EXPECT_EQ(with.at("loras").at(0).at("name"), "sd3_peft");
  EXPECT_EQ(with.at("loras").at(0).at("scale").to_number<double>(), 0.5);
  EXPECT_EQ(certificates(), 0);
  ASSERT_TRUE(verify("/zero", {adapter + ":0"}).is_object());
  const boost::json::value without = verify("/without", {});
  ASSERT_TRUE(without.is_object());
  EXPECT_TRUE(without.at("certificate").is_string());
  EXPECT_EQ(certificates(), 1);
  ASSERT_FALSE(recorded("/without").empty());
  EXPECT_EQ(recorded("/zero"), recorded("/without"));
  EXPECT_NE(recorded("/with"), recorded("/without"));
}

// Writes a model with the shape of FLUX.1-dev except for the autoencoder. Its weight files are sparse.
void WriteFluxOfFullSize(const TestFolder& folder) {
  fs::copy("tests/golden/pipelines/flux_dev", folder.path(), fs::copy_options::recursive);
  const auto change = [&](const std::string& name, const boost::json::object& fields) {
    std::ifstream file(folder / name);
    boost::json::object config = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {})).as_object();
    for (const auto& field : fields) config[field.key()] = field.value();
    folder.Write(name, boost::json::serialize(config));
  };
  for (const char* component : {"transformer", "text_encoder", "text_encoder_2"}) {
    for (const auto& entry : fs::directory_iterator(folder / component)) {
      if (entry.path().filename() != "config.json") fs::remove(entry.path());
    }
  }
  FluxTransformer().Write(folder, "transformer/diffusion_pytorch_model", int64_t{1} << 40);
  T5Xxl().Write(folder, "text_encoder_2/model", int64_t{1} << 40);
  ClipLarge().Write(folder, "text_encoder/model", int64_t{1} << 40);
  change("transformer/config.json", {{"attention_head_dim", 128},
                                     {"axes_dims_rope", {16, 56, 56}},
                                     {"joint_attention_dim", 4096},
                                     {"num_attention_heads", 24},
                                     {"num_layers", 19},
                                     {"num_single_layers", 38},
                                     {"pooled_projection_dim", 768}});
  change(
      "text_encoder_2/config.json",
      {{"d_ff", 10240}, {"d_kv", 64}, {"d_model", 4096}, {"num_heads", 64}, {"num_layers", 24}, {"vocab_size", 32128}});
  change("text_encoder/config.json", {{"hidden_size", 768},
                                      {"intermediate_size", 3072},
                                      {"num_attention_heads", 12},
                                      {"num_hidden_layers", 12},
                                      {"projection_dim", 768},
                                      {"vocab_size", 49408}});
}

std::string Gibibytes(const boost::json::value& bytes) {
  return absl::StrFormat("%.1f GiB", bytes.to_number<double>() / (int64_t{1} << 30));
}

// Returns the cells of a table line in a document, without spaces and backquotes.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells = absl::StrSplit(line, '|');
  for (std::string& cell : cells) {
    cell = absl::StrReplaceAll(absl::StripAsciiWhitespace(cell), {{"`", ""}});
  }
  return cells;
}

TEST_F(LayoutsOfModelsTest, TheSizingTableSaysWhatTheCommandComputes) {
  const TestFolder model;
  WriteFluxOfFullSize(model);
  std::map<std::pair<std::string, std::string>, boost::json::value> lists;  // by ranks and dtype
  std::ifstream page("docs/operations.md");
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!absl::StartsWith(line, "| FLUX.1-dev |")) continue;
    const std::vector<std::string> cells = Cells(line);  // "", model, dtype, ranks, layout, weights, …
    boost::json::value& list = lists[{cells[3], cells[2]}];
    if (list.is_null()) {
      list = RunForJson({"layouts", "--model", model.path(), "--ranks", cells[3], "--dtype", cells[2], "--json"});
    }
    ASSERT_TRUE(list.is_object());
    std::string weights;
    for (const boost::json::value& layout : list.at("layouts").as_array()) {
      if (layout.at("layout") != cells[4].c_str()) continue;
      weights = Gibibytes(layout.at("weight_bytes_first_rank"));
      if (!layout.at("weight_bytes_other_ranks").is_null()) {
        weights += ", " + Gibibytes(layout.at("weight_bytes_other_ranks"));
      }
    }
    EXPECT_EQ(cells[5], weights) << line;
    ++rows;
  }
  EXPECT_EQ(rows, 9);
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
