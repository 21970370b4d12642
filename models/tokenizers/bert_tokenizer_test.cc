#include "models/tokenizers/bert_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/golden_tokens.h"

namespace tessera::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kBert[] = "tests/golden/pipelines/hunyuan11/tokenizer";
// Ids in the golden vocabulary.
constexpr int64_t kUnknown = 10;
constexpr int64_t kStart = 11;
constexpr int64_t kEnd = 12;
constexpr int64_t kMask = 13;

BertTokenizer LoadBert() {
  absl::StatusOr<BertTokenizer> tokenizer = BertTokenizer::Load(kBert);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, ab 4, ##c 5, ##cd 6, A 7, é 8, e 9, 中 10, ##国 11, ##é 12, ! 13.
BertTokenizerFiles SmallFiles() {
  return {.vocab_txt = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nab\n##c\n##cd\nA\né\ne\n中\n##国\n##é\n!\n",
          .tokenizer_config_json = "{}"};
}

BertTokenizer ParseBert(const BertTokenizerFiles& files) {
  absl::StatusOr<BertTokenizer> tokenizer = BertTokenizer::Parse(files, "tokenizer");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

BertTokenizer WithConfig(const std::string& config_json) {
  BertTokenizerFiles files = SmallFiles();
  files.tokenizer_config_json = config_json;
  return ParseBert(files);
}

std::string ErrorOf(const BertTokenizerFiles& files) {
  const absl::Status status = BertTokenizer::Parse(files, "tokenizer").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::string VocabularyError(const std::string& vocab_txt) {
  BertTokenizerFiles files = SmallFiles();
  files.vocab_txt = vocab_txt;
  return ErrorOf(files);
}

TEST(BertTokenizer, GivesTheGoldenIds) { ExpectGolden(LoadBert(), ReadGoldenTokens("hunyuan11.tokenizer")); }

TEST(BertTokenizer, ReportsWhatItsFilesSay) {
  const BertTokenizer tokenizer = LoadBert();
  EXPECT_EQ(tokenizer.vocabulary_size(), 404);
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.end_id(), kEnd);
  EXPECT_EQ(tokenizer.model_max_length(), 77);
}

// The expected ids below that are not in the goldens were computed with transformers 5.23 and tokenizers 0.23.

TEST(BertTokenizer, FindsSpecialTokensByTheirExactText) {
  EXPECT_THAT(Ids(LoadBert(), "[MASK]x[mask]"), ElementsAre(kStart, kMask, 72, 46, 61, 195, 213, 205, 47, kEnd));
}

TEST(BertTokenizer, AnUnusedEntryIsNotASpecialToken) {
  EXPECT_THAT(Ids(LoadBert(), "[unused1] a"), ElementsAre(kStart, 46, 69, 208, 215, 392, 198, 186, 47, 49, kEnd));
}

TEST(BertTokenizer, AWordOfMoreThanAHundredCharactersIsUnknown) {
  const BertTokenizer tokenizer = LoadBert();
  EXPECT_EQ(Ids(tokenizer, std::string(100, 'a')).size(), 102u);
  EXPECT_THAT(Ids(tokenizer, std::string(101, 'a') + " a"), ElementsAre(kStart, kUnknown, 49, kEnd));
}

TEST(BertTokenizer, RemovesControlAndFormatCharacters) {
  const BertTokenizer tokenizer = LoadBert();
  EXPECT_THAT(Ids(tokenizer, "x\u200Db"), ElementsAre(kStart, 72, 196, kEnd));
  EXPECT_THAT(Ids(tokenizer, "a\u00ADb\uFFFD\x01"), ElementsAre(kStart, 49, 196, kEnd));
}

TEST(BertTokenizer, AnEmojiStaysInItsWord) {
  EXPECT_THAT(Ids(LoadBert(), "\u0378x \U0001F970 a\U0001F970b"),
              ElementsAre(kStart, kUnknown, kUnknown, kUnknown, kEnd));
}

TEST(BertTokenizer, StripsAccentsOfComposedAndDecomposedCharacters) {
  EXPECT_THAT(Ids(LoadBert(), "\u00E9\u0301 e\u0301 \u0130"), ElementsAre(kStart, 53, 53, 57, kEnd));
}

TEST(BertTokenizer, SpellsWithTheLongestPieces) {
  EXPECT_THAT(Ids(ParseBert(SmallFiles()), "abcdc abx"), ElementsAre(2, 4, 6, 5, 1, 3));
}

TEST(BertTokenizer, LowersAndStripsAccentsAsTheConfigSays) {
  EXPECT_THAT(Ids(WithConfig("{}"), "É"), ElementsAre(2, 9, 3));
  EXPECT_THAT(Ids(WithConfig(R"({"strip_accents": false})"), "É"), ElementsAre(2, 8, 3));
  EXPECT_THAT(Ids(WithConfig(R"({"do_lower_case": false})"), "A é"), ElementsAre(2, 7, 8, 3));
  EXPECT_THAT(Ids(WithConfig(R"({"do_lower_case": false, "strip_accents": true})"), "A é"), ElementsAre(2, 7, 9, 3));
}

TEST(BertTokenizer, CutsAtChineseCharactersUnlessTheConfigSaysOtherwise) {
  EXPECT_THAT(Ids(WithConfig("{}"), "中国"), ElementsAre(2, 10, 1, 3));
  EXPECT_THAT(Ids(WithConfig(R"({"tokenize_chinese_chars": false})"), "中国"), ElementsAre(2, 10, 11, 3));
}

TEST(BertTokenizer, AVocabularyNeedsNoMaskToken) { EXPECT_EQ(ParseBert(SmallFiles()).vocabulary_size(), 14); }

TEST(BertTokenizer, ReadsLinesWithCarriageReturnsAndAnEmptyLine) {
  BertTokenizerFiles files = SmallFiles();
  files.vocab_txt = "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n\r\nab\r\n##c";
  const BertTokenizer tokenizer = ParseBert(files);
  EXPECT_THAT(Ids(tokenizer, "abc"), ElementsAre(2, 5, 6, 3));
  EXPECT_EQ(tokenizer.vocabulary_size(), 7);
}

TEST(BertTokenizer, TruncationKeepsTheEndTokenAndReportsWhatWasCut) {
  const absl::StatusOr<TokenIds> tokens = ParseBert(SmallFiles()).Encode("ABCDc 中 Ab!", 4);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(2, 4, 6, 3));
  EXPECT_EQ(tokens->tokens_before_truncation, 8);
  EXPECT_EQ(tokens->cut_text, "c 中 Ab!");
}

TEST(BertTokenizer, ATextOfExactlyTheMaximumIsNotTruncated) {
  const absl::StatusOr<TokenIds> tokens = ParseBert(SmallFiles()).Encode("abcd!", 5);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_FALSE(tokens->truncated);
}

// With quadratic time for any of these the test would exceed its timeout.
TEST(BertTokenizer, AMillionBytesAreEncoded) {
  const BertTokenizer tokenizer = LoadBert();
  for (const std::string_view part : {"a photo of a cat, ", "x", "!", "[", "[SEP]", " ", "\u732B", "\u0301\u0323"}) {
    std::string text;
    while (text.size() < 1000000) text += part;
    EXPECT_EQ(Ids(tokenizer, text, 77).back(), kEnd) << part;
  }
}

TEST(BertTokenizer, RefusesInvalidUtf8NamingTheField) {
  EXPECT_THAT(std::string(LoadBert().Encode("a\xFF", 10, "negative_prompt").status().message()),
              StartsWith("negative_prompt: the text is not valid UTF-8 at byte 1"));
}

TEST(BertTokenizer, RefusesANulCharacter) {
  EXPECT_THAT(std::string(LoadBert().Encode(std::string_view("a\0b", 3), 10).status().message()),
              HasSubstr("NUL character at byte 1"));
}

TEST(BertTokenizer, NamesAMissingFileRelativeToTheModel) {
  const absl::Status status = BertTokenizer::Load("tests/golden/pipelines/sd3/tokenizer_2").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "cannot open tokenizer_2/vocab.txt: No such file or directory");
}

TEST(BertVocabulary, RefusesAnEmptyFile) {
  EXPECT_THAT(VocabularyError(""), StartsWith("tokenizer/vocab.txt is empty"));
}

TEST(BertVocabulary, RefusesARepeatedLine) {
  EXPECT_THAT(VocabularyError("[PAD]\n[UNK]\nab\n[CLS]\nab\n"),
              StartsWith(R"(tokenizer/vocab.txt: lines 3 and 5 are the same, "ab")"));
}

TEST(BertVocabulary, RefusesInvalidUtf8) {
  EXPECT_EQ(VocabularyError("[PAD]\n\xFF\n"), "tokenizer/vocab.txt: line 2 is not valid UTF-8");
}

TEST(BertVocabulary, RefusesAVocabularyWithoutOneOfTheSpecialTokens) {
  for (const char* missing : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
    std::string vocabulary = "a\n";
    for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
      if (token != missing) absl::StrAppend(&vocabulary, token, "\n");
    }
    EXPECT_THAT(VocabularyError(vocabulary),
                HasSubstr(absl::StrCat("\"", missing, "\" is not in tokenizer/vocab.txt")));
  }
}

TEST(BertConfig, RefusesAnotherTokenizersConfig) {
  BertTokenizerFiles files = SmallFiles();
  files.tokenizer_config_json = R"({"tokenizer_class": "CLIPTokenizer"})";
  EXPECT_THAT(ErrorOf(files), HasSubstr("tokenizer_class"));
}

TEST(BertConfig, RefusesAMapThatIsNoObject) {
  BertTokenizerFiles files = SmallFiles();
  files.special_tokens_map_json = "[]";
  EXPECT_THAT(ErrorOf(files), HasSubstr("tokenizer/special_tokens_map.json"));
}

}  // namespace
}  // namespace tessera::models
