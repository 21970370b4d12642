#include "models/weights/weight_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ErrorOf(const TestFolder& folder) {
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder.path(), "transformer");
  EXPECT_FALSE(weights.ok());
  EXPECT_THAT(std::string(weights.status().message()), Not(HasSubstr(folder.path())));
  return std::string(weights.status().message());
}

// Returns the files that Open selects from a folder in which each of these files has one tensor named like the file.
std::vector<std::string> FilesTakenFrom(const std::vector<std::string>& names) {
  const TestFolder folder;
  for (const std::string& name : names) folder.Write(name, OneTensor(name));
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder.path(), "transformer");
  EXPECT_TRUE(weights.ok()) << weights.status();
  return weights.ok() ? weights->files() : std::vector<std::string>();
}

// Returns the files that Open selects if an index maps to two shards.
std::vector<std::string> ShardsTakenFrom(const std::string& index, const std::string& shard1,
                                         const std::string& shard2) {
  const TestFolder folder;
  folder.Write(shard1, OneTensor("a"));
  folder.Write(shard2, OneTensor("b"));
  folder.Write(index, R"({"weight_map": {"a": ")" + shard1 + R"(", "b": ")" + shard2 + "\"}}");
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder.path(), "transformer");
  EXPECT_TRUE(weights.ok()) << weights.status();
  return weights.ok() ? weights->files() : std::vector<std::string>();
}

std::string IndexError(const std::string& text) {
  const absl::Status status = ParseWeightIndex(text, "transformer/index.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr("transformer/index.json"));
  return std::string(status.message());
}

TEST(WeightFolderTest, AGoldenFolderWithOneFileIsRead) {
  const absl::StatusOr<WeightFolder> weights =
      WeightFolder::Open("tests/golden/pipelines/pixart_alpha/transformer", "transformer");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->files(), ElementsAre("diffusion_pytorch_model.safetensors"));
  EXPECT_EQ(weights->tensors().size(), 65u);
  std::vector<float> values(96 * 4 * 2 * 2);
  ASSERT_TRUE(weights->Read("pos_embed.proj.weight", std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values[100], -0.199616075f);
}

TEST(WeightFolderTest, AGoldenShardedFolderHasTheBytesItsIndexCounts) {
  const absl::StatusOr<WeightFolder> weights =
      WeightFolder::Open("tests/golden/pipelines/sd3/transformer", "transformer");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->files(), ElementsAre("diffusion_pytorch_model-00001-of-00002.safetensors",
                                            "diffusion_pytorch_model-00002-of-00002.safetensors"));
  EXPECT_EQ(weights->tensors().size(), 95u);
  EXPECT_EQ(weights->total_bytes(), 967808u);
  EXPECT_EQ(weights->tensors().at("proj_out.bias").file, 1u);
}

TEST(WeightFolderTest, EveryComponentOfEveryGoldenPipelineIsRead) {
  size_t folders = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/golden/pipelines")) {
    if (!entry.is_directory() || !WeightFolder::HasWeights(entry.path())) continue;
    const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(entry.path(), entry.path().filename());
    EXPECT_TRUE(weights.ok()) << entry.path() << ": " << weights.status();
    ++folders;
  }
  EXPECT_EQ(folders, 34u);
}

TEST(WeightFolderTest, FullPrecisionIsTakenBeforeVariants) {
  const std::string full = "diffusion_pytorch_model.safetensors", half = "diffusion_pytorch_model.fp16.safetensors";
  EXPECT_THAT(FilesTakenFrom({half, full}), ElementsAre(full));
  EXPECT_THAT(FilesTakenFrom({"model.fp16.safetensors", "model.safetensors"}), ElementsAre("model.safetensors"));
  EXPECT_THAT(FilesTakenFrom({"model.bf16.safetensors", "model.fp16.safetensors"}),
              ElementsAre("model.fp16.safetensors"));
}

TEST(WeightFolderTest, AVariantIsTakenWhereItIsAllThereIs) {
  for (const std::string name : {"diffusion_pytorch_model.fp16.safetensors", "model.fp16.safetensors",
                                 "diffusion_pytorch_model.bf16.safetensors", "model.bf16.safetensors"}) {
    EXPECT_THAT(FilesTakenFrom({name}), ElementsAre(name));
  }
}

TEST(WeightFolderTest, EveryWayOfNamingShardsIsUnderstood) {
  const auto check = [](const std::string& index, const std::string& shard1, const std::string& shard2) {
    EXPECT_THAT(ShardsTakenFrom(index, shard1, shard2), ElementsAre(shard1, shard2)) << index;
  };
  check("model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
  check("diffusion_pytorch_model.fp16.safetensors.index.json",
        "diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
        "diffusion_pytorch_model-00002-of-00002.fp16.safetensors");
  check("diffusion_pytorch_model.safetensors.index.fp16.json",
        "diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
        "diffusion_pytorch_model.fp16-00002-of-00002.safetensors");
  check("model.safetensors.index.fp16.json", "model.fp16-00001-of-00002.safetensors",
        "model.fp16-00002-of-00002.safetensors");
  check("some_model.safetensors.index.json", "a.safetensors", "b.safetensors");
}

TEST(WeightFolderTest, ADownloadCacheOfLinksIsRead) {
  const TestFolder folder;
  folder.Write("blobs/0a1b", OneTensor("a"));
  folder.Write("snapshots/main/transformer/config.json", "{}");
  const std::string transformer = folder / "snapshots/main/transformer";
  std::filesystem::create_symlink("../../../blobs/0a1b", transformer + "/diffusion_pytorch_model.safetensors");
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(transformer, "transformer");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->total_bytes(), 4u);
}

TEST(WeightFolderTest, ALinkThatLeadsNowhereIsNamed) {
  const TestFolder folder;
  std::filesystem::create_symlink("../blobs/gone", folder / "model.safetensors");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("cannot open transformer/model.safetensors"));
}

TEST(WeightFolderTest, PicklesAloneAreRefusedWithTheConversion) {
  const TestFolder folder;
  folder.Write("diffusion_pytorch_model.bin", "PK");
  EXPECT_THAT(ErrorOf(folder),
              AllOf(HasSubstr("\"diffusion_pytorch_model.bin\""), HasSubstr("convert MODEL to safetensors with: "),
                    HasSubstr("python3 scripts/convert-model.py MODEL NEW_FOLDER")));
}

TEST(WeightFolderTest, AGgufFileAloneIsRefusedWithTheConversion) {
  const TestFolder folder;
  folder.Write("flux-q4.gguf", "GGUF");
  EXPECT_THAT(ErrorOf(folder), AllOf(HasSubstr("\"flux-q4.gguf\""), HasSubstr("GGUF"),
                                     HasSubstr("--model MODEL/transformer/FILE.gguf")));
}

TEST(WeightFolderTest, QuantizedWeightsAreOpenedUnlessTheirScaleIsMissing) {
  const auto entry = [](const std::string& name, const std::string& type) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[0],\"data_offsets\":[0,0]}";
  };
  const TestFolder fp8, int8;
  fp8.Write("model.safetensors", SafetensorsBytes("{" + entry("a.weight", "F8_E4M3") + "}", ""));
  const absl::StatusOr<WeightFolder> opened = WeightFolder::Open(fp8.path(), "transformer");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_NE(opened->tensors().at("a.weight").quantization, nullptr);
  int8.Write("model.safetensors", SafetensorsBytes("{" + entry("a.weight", "I8") + "}", ""));
  EXPECT_THAT(ErrorOf(int8), AllOf(HasSubstr("\"a.weight\" is in int8"), HasSubstr("\"a.weight_scale\"")));
}

TEST(WeightFolderTest, PicklesNextToSafetensorsDoNotMatter) {
  const TestFolder folder;
  folder.Write("pytorch_model.bin", "PK");
  folder.Write("model.safetensors", OneTensor("a"));
  EXPECT_TRUE(WeightFolder::Open(folder.path(), "text_encoder").ok());
}

TEST(WeightFolderTest, FilesUnderUnknownNamesAreListed) {
  const TestFolder folder;
  folder.Write("model-00001-of-00002.safetensors", OneTensor("a"));
  EXPECT_THAT(ErrorOf(folder), AllOf(HasSubstr("\"model-00001-of-00002.safetensors\""), HasSubstr("index.json")));
}

TEST(WeightFolderTest, AFolderWithoutWeightsSaysWhatIsExpected) {
  const TestFolder folder;
  EXPECT_THAT(ErrorOf(folder), HasSubstr("model.safetensors"));
  EXPECT_FALSE(WeightFolder::HasWeights(folder.path()));
  EXPECT_EQ(WeightFolder::Open(folder / "absent", "vae").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(WeightFolder::HasWeights(folder / "absent"));
}

TEST(WeightFolderTest, ATensorThatIsNotInItsShardIsNamedWithTheShard) {
  const TestFolder folder;
  folder.Write("a.safetensors", OneTensor("a"));
  folder.Write("model.safetensors.index.json", R"({"weight_map": {"a": "a.safetensors", "b": "a.safetensors"}})");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("tensor \"b\" is not in a.safetensors"));
}

TEST(WeightFolderTest, ATensorInTwoShardsNamesBoth) {
  const TestFolder folder;
  folder.Write("a.safetensors", OneTensor("w"));
  folder.Write("b.safetensors", SafetensorsBytes(R"({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},)"
                                                 R"( "v": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
                                                 "xy"));
  folder.Write("model.safetensors.index.json", R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("tensor \"w\" is both in a.safetensors and in b.safetensors"));
}

TEST(WeightFolderTest, ATensorOfAShardThatTheIndexDoesNotMapIsReported) {
  const TestFolder folder;
  folder.Write("a.safetensors", SafetensorsBytes(R"({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},)"
                                                 R"( "v": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
                                                 "xy"));
  folder.Write("model.safetensors.index.json", R"({"weight_map": {"w": "a.safetensors"}})");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("tensor \"v\" of a.safetensors is not mapped"));
}

TEST(WeightFolderTest, AllProblemsOfAnIndexAreReportedTogether) {
  const TestFolder folder;
  folder.Write("a.safetensors", OneTensor("a"));
  folder.Write("c.safetensors", "broken");
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a2": "a.safetensors", "b": "b.safetensors", "c": "c.safetensors"}})");
  EXPECT_THAT(ErrorOf(folder), AllOf(HasSubstr("\"a\" of a.safetensors is not mapped"), HasSubstr("\"a2\" is not in"),
                                     HasSubstr("cannot open transformer/b.safetensors"),
                                     HasSubstr("transformer/c.safetensors: has 6 bytes")));
}

TEST(WeightFolderTest, AHundredProblemsAreCountedAndTwentyShown) {
  const TestFolder folder;
  std::string map;
  for (int i = 0; i < 100; ++i) map += ", \"t" + std::to_string(i) + "\": \"a.safetensors\"";
  folder.Write("a.safetensors", OneTensor("a"));
  folder.Write("model.safetensors.index.json", R"({"weight_map": {"a": "a.safetensors")" + map + "}}");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("and 80 more"));
}

TEST(WeightFolderTest, ReadingChecksNameAndSize) {
  const TestFolder folder;
  folder.Write("model.safetensors", OneTensor("a"));
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder.path(), "vae");
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::byte out[8];
  EXPECT_TRUE(weights->Read("a", std::span(out, 4)).ok());
  EXPECT_EQ(weights->Read("a", out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(weights->Read("b", out).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(weights->Read(weights->tensors().at("a"), 2, std::span(out, 2)).ok());
}

TEST(WeightIndexTest, AFileOutsideTheFolderIsRefusedWithItsTensor) {
  for (const std::string file : {"../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "a\\\\x.safetensors",
                                 "x\\u0000.safetensors", "", "..", "."}) {
    EXPECT_THAT(IndexError(R"({"weight_map": {"blocks.0": ")" + file + "\"}}"),
                AllOf(HasSubstr("\"blocks.0\""), HasSubstr("same folder")))
        << file;
  }
}

TEST(WeightIndexTest, AFileThatIsNoSafetensorsIsRefused) {
  EXPECT_THAT(IndexError(R"({"weight_map": {"w": "pytorch_model-00001-of-00002.bin"}})"), HasSubstr(".safetensors"));
  EXPECT_THAT(IndexError(R"({"weight_map": {"w": 3}})"), HasSubstr("mapped to 3"));
}

TEST(WeightIndexTest, AnIndexWithoutAMapIsRefused) {
  EXPECT_THAT(IndexError("{}"), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(IndexError("[]"), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(IndexError(R"({"weight_map": []})"), HasSubstr("a list of 0 values"));
  EXPECT_THAT(IndexError(R"({"weight_map": {}})"), HasSubstr("empty"));
}

TEST(WeightIndexTest, ATensorMappedTwiceIsRefused) {
  EXPECT_THAT(IndexError(R"({"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}})"),
              HasSubstr("duplicate key \"w\""));
}

}  // namespace
}  // namespace tessera::models
