#include "models/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/golden_tokens.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kPipelines[] = "tests/golden/pipelines/";

std::unique_ptr<Tokenizer> LoadGolden(std::string_view class_name, const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(class_name, kPipelines + folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Tokenizer, IsLoadedByTheClassThatTheModelNames) {
  EXPECT_EQ(LoadGolden("CLIPTokenizer", "sd3/tokenizer")->end_id(), 1513);
  EXPECT_EQ(LoadGolden("CLIPTokenizerFast", "sd3/tokenizer")->end_id(), 1513);
  EXPECT_EQ(LoadGolden("BertTokenizer", "hunyuan11/tokenizer")->end_id(), 12);
  EXPECT_EQ(LoadGolden("BertTokenizerFast", "hunyuan11/tokenizer")->end_id(), 12);
  for (const char* name : {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"}) {
    EXPECT_EQ(LoadGolden(name, "hunyuan11/tokenizer_2")->end_id(), 1) << name;
  }
}

TEST(Tokenizer, AnUnknownClassIsRefusedWithAListOfTheKnownOnes) {
  const absl::Status status = LoadTokenizer("GPT2Tokenizer", std::string(kPipelines) + "sd3/tokenizer").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"GPT2Tokenizer\""), HasSubstr("BertTokenizer, BertTokenizerFast, CLIPTokenizer"),
                    HasSubstr("T5TokenizerFast")));
}

TEST(Tokenizer, ReportsWhichFilesItReads) {
  const auto files = [](std::string_view class_name, const std::string& folder) {
    return TokenizerFiles(class_name, "tests/golden/" + folder);
  };
  using testing::ElementsAre;
  EXPECT_THAT(files("CLIPTokenizer", "pipelines/sd3/tokenizer"),
              ElementsAre("vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"));
  EXPECT_THAT(files("BertTokenizer", "pipelines/hunyuan11/tokenizer"),
              ElementsAre("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"));
  EXPECT_THAT(files("MT5Tokenizer", "saved_tokenizers/hunyuan11.tokenizer_2"),
              ElementsAre("tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(files("AutoencoderKL", "pipelines/sd3/vae"), testing::IsEmpty());
}

TEST(Tokenizer, AClassThatOnlyTokenizerJsonHoldsIsNotReadFromOtherFiles) {
  EXPECT_THAT(
      std::string(LoadTokenizer("Qwen2Tokenizer", std::string(kPipelines) + "sd3/tokenizer").status().message()),
      HasSubstr("tokenizer/tokenizer.json: there is no such file"));
}

TEST(Tokenizer, EncodesTheSameFromManyThreads) {
  for (const auto& [class_name, folder, golden] :
       {std::tuple("CLIPTokenizer", "sd3/tokenizer", "sd3.tokenizer"),
        std::tuple("BertTokenizer", "hunyuan11/tokenizer", "hunyuan11.tokenizer"),
        std::tuple("CLIPTokenizer", "../saved_tokenizers/flux_dev.tokenizer", "flux_dev.tokenizer"),
        std::tuple("T5Tokenizer", "../saved_tokenizers/flux_dev.tokenizer_2", "flux_dev.tokenizer_2")}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(class_name, folder);
    const std::vector<GoldenRow> rows = ReadGoldenTokens(golden).rows;
    std::vector<int> wrong(4);
    std::vector<std::thread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (const GoldenRow& row : rows) count += Ids(*tokenizer, row.prompt) != row.ids;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4)) << class_name;
  }
}

}  // namespace
}  // namespace tessera::models
