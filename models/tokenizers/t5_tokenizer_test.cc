#include "models/tokenizers/t5_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/golden_tokens.h"

namespace tessera::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kT5 = "tests/golden/pipelines/pixart_alpha/tokenizer";

T5Tokenizer LoadTokenizer(const std::string& folder) {
  absl::StatusOr<T5Tokenizer> tokenizer = T5Tokenizer::Load(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// A copy of a tokenizer's folder that a test may damage.
class TokenizerCopy {
 public:
  TokenizerCopy() : folder_(std::filesystem::path(testing::TempDir()) / "t5_tokenizer_test" / "tokenizer") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const auto& entry : std::filesystem::directory_iterator(kT5)) {
      std::filesystem::copy_file(entry.path(), folder_ / entry.path().filename());
      std::filesystem::permissions(folder_ / entry.path().filename(), std::filesystem::perms::owner_all);
    }
  }
  ~TokenizerCopy() { std::filesystem::remove_all(folder_); }
  void Write(const std::string& file, std::string_view text) {
    std::ofstream(folder_ / file, std::ios::binary) << text;
  }
  void Remove(const std::string& file) { std::filesystem::remove(folder_ / file); }
  std::string path() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

TEST(T5Tokenizer, GivesTheGoldenIdsOfEveryT5Folder) {
  for (const auto& [name, folder] :
       {std::pair("pixart_alpha.tokenizer", "pixart_alpha/tokenizer"),
        std::pair("flux_dev.tokenizer_2", "flux_dev/tokenizer_2"), std::pair("sd3.tokenizer_3", "sd3/tokenizer_3")}) {
    ExpectGolden(LoadTokenizer(std::string("tests/golden/pipelines/") + folder), ReadGoldenTokens(name));
  }
}

TEST(T5Tokenizer, SpellsUnknownCharactersAsBytesWhereTheModelHasThem) {
  const T5Tokenizer tokenizer = LoadTokenizer("tests/golden/pipelines/hunyuan11/tokenizer_2");
  const GoldenTokens golden = ReadGoldenTokens("hunyuan11.tokenizer_2");
  int spelled = 0;
  for (const GoldenRow& row : golden.rows) {
    if (row.prompt.starts_with("</s>")) continue;  // also differs in its special token
    const bool differs = !row.sentencepiece_ids.empty();
    spelled += differs;
    std::vector<int64_t> expected = differs ? row.sentencepiece_ids : row.ids;
    EXPECT_EQ(Ids(tokenizer, row.prompt), expected) << row.prompt;
    if (static_cast<int64_t>(expected.size()) > golden.max_length) {
      expected.resize(golden.max_length);
      expected.back() = tokenizer.end_id();
    }
    EXPECT_EQ(Ids(tokenizer, row.prompt, golden.max_length), expected) << row.prompt;
    EXPECT_EQ(tokenizer.pad_id(), row.pad_id);
  }
  EXPECT_GT(spelled, 10);
}

TEST(T5Tokenizer, ReadsALiteralEndTokenBeforeBytesAreSpelled) {
  const T5Tokenizer tokenizer = LoadTokenizer("tests/golden/pipelines/hunyuan11/tokenizer_2");
  // The golden's sentencepiece ids without the five that spell "</s>", after the end token.
  EXPECT_THAT(Ids(tokenizer, "</s> and <extra_id_0> literals"),
              ElementsAre(1, 259, 271, 259, 63, 404, 276, 278, 98, 294, 275, 98, 484, 65, 448, 265, 399, 310, 262, 1));
}

TEST(T5Tokenizer, NumbersSentinelsFromTheEnd) {
  const T5Tokenizer tokenizer = LoadTokenizer(kT5);
  EXPECT_EQ(tokenizer.vocabulary_size(), 486);
  EXPECT_THAT(Ids(tokenizer, "<extra_id_0><extra_id_99><extra_id_10>"), ElementsAre(485, 386, 475, 1));
}

TEST(T5Tokenizer, ReportsWhatItsFilesSay) {
  const T5Tokenizer tokenizer = LoadTokenizer(kT5);
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.end_id(), 1);
  EXPECT_EQ(tokenizer.model_max_length(), 120);
}

TEST(T5Tokenizer, TruncationKeepsTheEndTokenAndReportsWhatWasCut) {
  const T5Tokenizer tokenizer = LoadTokenizer(kT5);
  const absl::StatusOr<TokenIds> tokens = tokenizer.Encode("a photo of a cat", 4);
  ASSERT_TRUE(tokens.ok());
  EXPECT_THAT(tokens->ids, ElementsAre(4, 329, 3, 1));
  EXPECT_EQ(tokens->tokens_before_truncation, 7);
  EXPECT_TRUE(tokens->truncated);
  EXPECT_EQ(tokens->cut_text, "of a cat");
}

TEST(T5Tokenizer, ATextOfExactlyTheMaximumIsNotTruncated) {
  const absl::StatusOr<TokenIds> tokens = LoadTokenizer(kT5).Encode("a photo of a cat", 7);
  ASSERT_TRUE(tokens.ok());
  EXPECT_FALSE(tokens->truncated);
  EXPECT_EQ(tokens->cut_text, "");
}

TEST(T5Tokenizer, AHundredThousandBytesAreEncodedAndCut) {
  const T5Tokenizer tokenizer = LoadTokenizer(kT5);
  for (const std::string_view part : {"a photo of a cat, ", "x", "</s>", "🐱", " ", "ｶﾞ"}) {
    std::string text;
    while (text.size() < 100000) text += part;
    const absl::StatusOr<TokenIds> tokens = tokenizer.Encode(text, 120);
    ASSERT_TRUE(tokens.ok()) << part;
    EXPECT_LE(tokens->ids.size(), 120u);
    EXPECT_EQ(tokens->ids.back(), 1);
  }
}

TEST(T5Tokenizer, RefusesInvalidUtf8NamingTheField) {
  const absl::StatusOr<TokenIds> tokens = LoadTokenizer(kT5).Encode("ab\xC3(", 10, "negative_prompt");
  EXPECT_TRUE(absl::IsInvalidArgument(tokens.status()));
  EXPECT_THAT(std::string(tokens.status().message()),
              HasSubstr("negative_prompt: the text is not valid UTF-8 at byte 2"));
}

TEST(T5Tokenizer, RefusesANulCharacter) {
  const absl::StatusOr<TokenIds> tokens = LoadTokenizer(kT5).Encode(std::string_view("a\0b", 3), 10);
  EXPECT_THAT(std::string(tokens.status().message()), HasSubstr("prompt: the text has a NUL character at byte 1"));
}

TEST(T5Tokenizer, RefusesALengthWithoutRoomForTheEndToken) {
  EXPECT_TRUE(absl::IsInvalidArgument(LoadTokenizer(kT5).Encode("a", 0).status()));
}

TEST(T5Tokenizer, NamesTheModelFileThatIsMissing) {
  TokenizerCopy copy;
  copy.Remove("spiece.model");
  const absl::StatusOr<T5Tokenizer> tokenizer = T5Tokenizer::Load(copy.path());
  EXPECT_TRUE(absl::IsNotFound(tokenizer.status()));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer/spiece.model"));
}

TEST(T5Tokenizer, NamesTheModelFileThatIsDamaged) {
  TokenizerCopy copy;
  for (const char* content : {"", "garbage", "\x0A\xFF\xFF\xFF\xFF\x0F", "\x0A\x02\x0A\x00"}) {
    copy.Write("spiece.model", content);
    const absl::StatusOr<T5Tokenizer> tokenizer = T5Tokenizer::Load(copy.path());
    EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status()));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer/spiece.model"));
  }
}

TEST(T5Tokenizer, RefusesATokenizerOfAnotherClass) {
  TokenizerCopy copy;
  copy.Write("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  EXPECT_THAT(std::string(T5Tokenizer::Load(copy.path()).status().message()), HasSubstr("tokenizer_class"));
}

TEST(T5Tokenizer, HasAHundredSentinelsWhereNoFileCountsThem) {
  TokenizerCopy copy;
  copy.Write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  copy.Remove("special_tokens_map.json");
  const T5Tokenizer tokenizer = LoadTokenizer(copy.path());
  EXPECT_EQ(tokenizer.vocabulary_size(), 486);
  EXPECT_EQ(tokenizer.model_max_length(), std::numeric_limits<int64_t>::max());
}

TEST(T5Tokenizer, RefusesANumberOfSentinelsThatContradictsTheList) {
  TokenizerCopy copy;
  copy.Write("tokenizer_config.json", R"({"extra_ids": 5})");
  EXPECT_THAT(std::string(T5Tokenizer::Load(copy.path()).status().message()), HasSubstr("extra_ids"));
}

TEST(T5Tokenizer, BelievesIdsThatTheConfigStates) {
  TokenizerCopy copy;
  copy.Write("tokenizer_config.json",
             R"({"added_tokens_decoder": {"500": {"content": "<style>", "special": true}}, "extra_ids": 100})");
  const T5Tokenizer tokenizer = LoadTokenizer(copy.path());
  EXPECT_THAT(Ids(tokenizer, "<style></s>"), ElementsAre(500, 1, 1));
  EXPECT_EQ(tokenizer.vocabulary_size(), 501);
}

TEST(T5Tokenizer, EncodesTheSameFromManyThreads) {
  const T5Tokenizer tokenizer = LoadTokenizer(kT5);
  const std::vector<GoldenRow> rows = ReadGoldenTokens("pixart_alpha.tokenizer").rows;
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (const GoldenRow& row : rows) count += Ids(tokenizer, row.prompt) != row.ids;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace tessera::models
