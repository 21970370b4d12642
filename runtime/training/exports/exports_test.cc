#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>

#include "base/json/json.h"
#include "models/weights/weight_folder.h"
#include "runtime/training/checkpoints/checkpoint.h"
#include "runtime/training/exports/adapter_file.h"
#include "runtime/training/exports/weights_folder.h"
#include "tests/support/random_tensor.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

AdapterModule Module(const std::string& name, int64_t rank, double alpha) {
  return {.name = name,
          .a = Random({rank, 6}, std::hash<std::string>()(name)).to(at::kFloat),
          .b = Random({4, rank}, std::hash<std::string>()(name) + 1).to(at::kFloat),
          .alpha = alpha};
}

AdapterExport SomeExport() {
  return {.modules = {Module("transformer_blocks.0.attn.to_q", 2, 4), Module("transformer_blocks.0.attn.to_k", 2, 4),
                      Module("transformer_blocks.1.attn.to_q", 2, 1.5), Module("proj_out", 3, 4),
                      Module("single_transformer_blocks.0.proj_out", 2, 4)},
          .base_digest = "abc",
          .step = 120,
          .trigger_phrase = "in the style of \"tok\""};
}

std::string TextOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Reads an fp32 tensor without LibTorch's reader and the writer's types.
std::vector<float> Numbers(const std::string& path, const std::string& tensor) {
  const auto file = models::SafetensorsFile::Open(path, path);
  EXPECT_TRUE(file.ok()) << file.status();
  const models::StoredTensor* stored = file->Find(tensor);
  if (stored == nullptr) {
    ADD_FAILURE() << path << " lacks " << tensor;
    return {};
  }
  EXPECT_EQ(stored->type, models::StoredType::kF32);
  std::vector<float> numbers(static_cast<size_t>(stored->elements()));
  EXPECT_TRUE(file->Read(*stored, 0, std::as_writable_bytes(std::span(numbers))).ok());
  return numbers;
}

std::vector<float> Numbers(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kFloat).contiguous();
  return {values.data_ptr<float>(), values.data_ptr<float>() + values.numel()};
}

// Returns the value that PEFT gives a module: that of the first pattern that matches the end of its name.
double Resolve(const base::Json& config, const std::string& prefix, const std::string& common,
               const std::string& patterns, const std::string& module) {
  for (const base::JsonMember& pattern : config.Find(prefix + patterns)->members()) {
    if (std::regex_match(module, std::regex("(.*\\.)?(" + pattern.key + ")$"))) return *pattern.value.AsNumber();
  }
  return *config.Find(prefix + common)->AsNumber();
}

void ExpectSaysRankAndAlpha(const std::string& text, const std::string& prefix) {
  const auto config = base::ParseJson(text, "config");
  ASSERT_TRUE(config.ok()) << config.status();
  const AdapterExport adapter = SomeExport();
  for (const AdapterModule& module : adapter.modules) {
    EXPECT_EQ(Resolve(*config, prefix, "r", "rank_pattern", module.name), module.a.size(0)) << module.name;
    EXPECT_EQ(Resolve(*config, prefix, "lora_alpha", "alpha_pattern", module.name), module.alpha) << module.name;
  }
  std::vector<std::string> targets;
  for (const base::Json& target : config->Find(prefix + "target_modules")->items())
    targets.push_back(*target.AsString());
  EXPECT_THAT(targets, ElementsAre("proj_out", "single_transformer_blocks.0.proj_out", "transformer_blocks.0.attn.to_k",
                                   "transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_q"));
}

TEST(AdapterFileTest, AFileHasFactorsRankAlphaAndOriginAsDiffusersWritesThem) {
  TestFolder folder;
  ASSERT_TRUE(WritePeftFile(folder / "a.safetensors", SomeExport()).ok());
  const auto file = models::SafetensorsFile::Open(folder / "a.safetensors", "a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 10u);
  for (const AdapterModule& module : SomeExport().modules) {
    const std::string name = "transformer." + module.name;
    EXPECT_EQ(Numbers(folder / "a.safetensors", name + ".lora_A.weight"), Numbers(module.a));
    EXPECT_EQ(Numbers(folder / "a.safetensors", name + ".lora_B.weight"), Numbers(module.b));
    EXPECT_EQ(file->Find(name + ".lora_A.weight")->shape, module.a.sizes().vec());
  }
  EXPECT_EQ(file->metadata().at("tessera.base_digest"), "abc");
  EXPECT_EQ(file->metadata().at("tessera.step"), "120");
  EXPECT_EQ(file->metadata().at("modelspec.trigger_phrase"), "in the style of \"tok\"");
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ExpectSaysRankAndAlpha(file->metadata().at("lora_adapter_metadata"), "transformer.");
}

TEST(AdapterFileTest, AFolderIsThatOfPeft) {
  TestFolder folder;
  ASSERT_TRUE(WritePeftFolder(folder / "new/adapter", SomeExport()).ok());
  for (const AdapterModule& module : SomeExport().modules) {
    EXPECT_EQ(
        Numbers(folder / "new/adapter/adapter_model.safetensors", "base_model.model." + module.name + ".lora_B.weight"),
        Numbers(module.b));
  }
  const std::string config = TextOf(folder / "new/adapter/adapter_config.json");
  ExpectSaysRankAndAlpha(config, "");
  EXPECT_THAT(config, HasSubstr(R"("peft_type":"LORA")"));
}

// Returns the adapter in a golden file: its factors, with ranks and alphas as PEFT reads them.
AdapterExport GoldenAdapter(const std::string& path, const std::string& tensor_prefix, const std::string& config_text,
                            const std::string& config_prefix) {
  const auto file = models::SafetensorsFile::Open(path, path);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto config = base::ParseJson(config_text, "config");
  EXPECT_TRUE(config.ok()) << config.status();
  AdapterExport adapter{.base_digest = file->metadata().at("tessera.base_digest"),
                        .step = std::stoll(file->metadata().at("tessera.step")),
                        .trigger_phrase = file->metadata().at("modelspec.trigger_phrase")};
  const auto read = [&](const std::string& name) {
    const models::StoredTensor* stored = file->Find(name);
    at::Tensor values = at::empty(stored->shape, at::kFloat);
    EXPECT_TRUE(file->Read(*stored, 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()}).ok());
    return values;
  };
  for (const base::Json& target : config->Find(config_prefix + "target_modules")->items()) {
    const std::string name = *target.AsString();
    adapter.modules.push_back({.name = name,
                               .a = read(tensor_prefix + name + ".lora_A.weight"),
                               .b = read(tensor_prefix + name + ".lora_B.weight"),
                               .alpha = Resolve(*config, config_prefix, "lora_alpha", "alpha_pattern", name)});
  }
  return adapter;
}

constexpr char kGolden[] = "tests/golden-exports/adapters/";

// tests/golden-exports records how diffusers and PEFT read these bytes.
TEST(AdapterFileTest, AFileThatDiffusersWasSeenToLoadIsWrittenByteForByte) {
  TestFolder folder;
  const std::string golden = std::string(kGolden) + "flux_exported.safetensors";
  const auto file = models::SafetensorsFile::Open(golden, golden);
  ASSERT_TRUE(file.ok()) << file.status();
  const AdapterExport adapter =
      GoldenAdapter(golden, "transformer.", file->metadata().at("lora_adapter_metadata"), "transformer.");
  ASSERT_EQ(adapter.modules.size(), 46u);
  ASSERT_TRUE(WritePeftFile(folder / "a.safetensors", adapter).ok());
  EXPECT_TRUE(TextOf(folder / "a.safetensors") == TextOf(golden));
}

TEST(AdapterFileTest, AFolderThatPeftWasSeenToLoadIsWrittenByteForByte) {
  TestFolder folder;
  const std::string golden = std::string(kGolden) + "pixart_exported/";
  const AdapterExport adapter = GoldenAdapter(golden + "adapter_model.safetensors", "base_model.model.",
                                              TextOf(golden + "adapter_config.json"), "");
  ASSERT_EQ(adapter.modules.size(), 25u);
  ASSERT_TRUE(WritePeftFolder(folder.path(), adapter).ok());
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"}) {
    EXPECT_TRUE(TextOf(folder / name) == TextOf(golden + name)) << name;
  }
}

TEST(AdapterFileTest, AnAdapterThatNoProgramCouldLoadIsRefusedByNameAndNotWritten) {
  TestFolder folder;
  const auto error = [&](const std::function<void(AdapterExport&)>& change) {
    AdapterExport adapter = SomeExport();
    change(adapter);
    const absl::Status status = WritePeftFile(folder / "a.safetensors", adapter);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](AdapterExport& a) { a.modules.clear(); }), HasSubstr("at least one module"));
  EXPECT_THAT(error([](AdapterExport& a) { a.modules.push_back(a.modules[3]); }),
              HasSubstr("\"proj_out\" is given twice"));
  EXPECT_THAT(error([](AdapterExport& a) {
                a.modules[3].a = at::zeros({2, 6});
              }),
              HasSubstr("\"proj_out\": the factors [2, 6] and [4, 3]"));
  EXPECT_THAT(error([](AdapterExport& a) { a.modules[3].a[0][0] = std::nan(""); }), HasSubstr("not finite"));
  EXPECT_THAT(error([](AdapterExport& a) { a.modules[3].alpha = std::numeric_limits<double>::infinity(); }),
              HasSubstr("alpha is not finite"));
  EXPECT_THAT(error([](AdapterExport& a) { a.modules[3].a = a.modules[3].a.to(at::kHalf); }),
              HasSubstr("types Half and Float"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// A model folder of a transformer with two weights and a table that is not trained, and a checkpoint of the weights.
class WeightsFolderTest : public testing::Test {
 protected:
  WeightsFolderTest() {
    folder_.Write("base/model_index.json", "{}");
    folder_.Write("base/whole_model.safetensors", "the same in the form of another program");
    folder_.Write("base/vae/diffusion_pytorch_model.safetensors", "of the autoencoder");
    folder_.Write("blobs/tokens", vocabulary_);
    folder_.Write("base/tokenizer/tokenizer_config.json", "{}");
    fs::create_directories(folder_ / "base/tokenizer");
    fs::create_symlink(folder_ / "blobs/tokens", folder_ / "base/tokenizer/vocab.txt");
    folder_.Write("base/transformer/config.json", "{\"a\":1}");
    folder_.Write("base/transformer/diffusion_pytorch_model.bin", "old");
    folder_.Write("base/transformer/diffusion_pytorch_model.safetensors",
                  SafetensorsBytes(R"({"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, )"
                                   R"("table": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]}, )"
                                   R"("y": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]}})",
                                   std::string(16, '\0') + "abcdefgh" + std::string(6, '\0')));
    const std::vector<Piece> pieces = {{"transformer.x", {2, 2}, WholeBox({2, 2}), x_},
                                       {"transformer.y", {3}, WholeBox({3}), y_},
                                       {"ema.x", {2, 2}, WholeBox({2, 2}), x_ * 2},
                                       {"wrong.x", {4}, WholeBox({4}), x_.view(-1)}};
    EXPECT_TRUE(WriteCheckpoint(folder_.path(), {.step = 9, .json = "{}"}, pieces, alone_).ok());
  }

  absl::Status Export(const std::string& prefix, const std::string& to) {
    auto reader = CheckpointReader::Open(folder_ / "checkpoint-9");
    EXPECT_TRUE(reader.ok()) << reader.status();
    return ExportWeights(*reader,
                         {.base = folder_ / "base", .base_digest = "abc", .prefix = prefix, .folder = folder_ / to});
  }

  TestFolder folder_;
  const std::string vocabulary_ = std::string(2 << 20, 'v');
  parallel::SingleRank alone_;
  const at::Tensor x_ = at::arange(4, at::kFloat).view({2, 2}) / 3, y_ = at::arange(3, at::kFloat) / 3;
};

TEST_F(WeightsFolderTest, TheFolderIsTheBaseWithTheTrainedTransformer) {
  ASSERT_TRUE(Export("transformer.", "out/").ok());
  const std::string weights = folder_ / "out/transformer/diffusion_pytorch_model.safetensors";
  EXPECT_EQ(Numbers(weights, "x"), Numbers(x_));
  const auto file = models::SafetensorsFile::Open(weights, "weights");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 3u);
  // 0, 1/3 and 2/3 in bf16, rounded to nearest: the upper halves of 0, 0x3eaaaaab and 0x3f2aaaab.
  const std::vector<uint16_t> expected = {0, 0x3eab, 0x3f2b};
  std::vector<uint16_t> y(3);
  ASSERT_TRUE(file->Read(*file->Find("y"), 0, std::as_writable_bytes(std::span(y))).ok());
  EXPECT_EQ(y, expected);
  std::string table(8, '\0');
  ASSERT_TRUE(file->Read(*file->Find("table"), 0, std::as_writable_bytes(std::span(table))).ok());
  EXPECT_EQ(table, "abcdefgh");
  EXPECT_EQ(file->metadata().at("tessera.step"), "9");

  EXPECT_EQ(TextOf(folder_ / "out/model_index.json"), "{}");
  EXPECT_EQ(TextOf(folder_ / "out/vae/diffusion_pytorch_model.safetensors"), "of the autoencoder");
  EXPECT_EQ(TextOf(folder_ / "out/transformer/config.json"), "{\"a\":1}");
  EXPECT_TRUE(TextOf(folder_ / "out/tokenizer/vocab.txt") == vocabulary_);
  EXPECT_FALSE(fs::equivalent(folder_ / "out/tokenizer/tokenizer_config.json",
                              folder_ / "base/tokenizer/tokenizer_config.json"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "out/tokenizer/vocab.txt"));
  EXPECT_TRUE(fs::equivalent(folder_ / "out/tokenizer/vocab.txt", folder_ / "blobs/tokens"));
  EXPECT_FALSE(fs::exists(folder_ / "out/transformer/diffusion_pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(folder_ / "out/whole_model.safetensors"));
  EXPECT_TRUE(models::WeightFolder::Open(folder_ / "out/transformer", "transformer").ok());
  // The base's weights are unchanged.
  EXPECT_THAT(Numbers(folder_ / "base/transformer/diffusion_pytorch_model.safetensors", "x"), ElementsAre(0, 0, 0, 0));
}

TEST_F(WeightsFolderTest, TheAverageOfTheWeightsCanBeTakenInstead) {
  ASSERT_TRUE(Export("ema.", "out").ok());
  EXPECT_EQ(Numbers(folder_ / "out/transformer/diffusion_pytorch_model.safetensors", "x"), Numbers(x_ * 2));
}

TEST_F(WeightsFolderTest, WhatDoesNotFitIsRefusedByNameAndNothingIsLeft) {
  const absl::Status misfit = Export("wrong.", "out");
  EXPECT_EQ(misfit.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(misfit.message()), HasSubstr("\"wrong.x\""));
  EXPECT_THAT(std::string(Export("nothing.", "out").message()), HasSubstr("\"nothing.…\""));
  EXPECT_EQ(Export("transformer.", "base").code(), absl::StatusCode::kAlreadyExists);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("base", "blobs", "checkpoint-9"));
}

}  // namespace
}  // namespace tessera::runtime
