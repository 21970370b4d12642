#include "models/tokenizers/clip_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/golden_tokens.h"

namespace tessera::models {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

constexpr char kClip[] = "tests/golden/tokenizers/clip_full";
constexpr char kPaddedWithExclamationMark[] = "tests/golden/pipelines/sd3/tokenizer_2";
constexpr int64_t kStart = 49406;
constexpr int64_t kEnd = 49407;

ClipTokenizer LoadClip(const std::string& folder = kClip) {
  absl::StatusOr<ClipTokenizer> tokenizer = ClipTokenizer::Load(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Returns a tokenizer of few tokens. "c" has no token at the end of a word; bytes other than a, b, c, ! have no token
// at all.
ClipTokenizerFiles SmallFiles() {
  return {.vocab_json = R"({"a": 0, "b": 1, "c": 2, "!": 3, "a</w>": 4, "b</w>": 5, "!</w>": 6, "ab": 7, "ab</w>": 8,
                            "abab</w>": 9, "bab</w>": 10, "<|startoftext|>": 11, "<|endoftext|>": 12})",
          .merges_txt = "#version: 0.2\na b\nb ab</w>\na b</w>\nab ab</w>\n",
          .tokenizer_config_json = "{}"};
}

ClipTokenizer ParseClip(const ClipTokenizerFiles& files) {
  absl::StatusOr<ClipTokenizer> tokenizer = ClipTokenizer::Parse(files, "tokenizer");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string ErrorOf(const ClipTokenizerFiles& files) {
  const absl::Status status = ClipTokenizer::Parse(files, "tokenizer").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::string VocabularyError(const std::string& vocab_json) {
  ClipTokenizerFiles files = SmallFiles();
  files.vocab_json = vocab_json;
  return ErrorOf(files);
}

std::string MergesError(const std::string& merges_txt) {
  ClipTokenizerFiles files = SmallFiles();
  files.merges_txt = merges_txt;
  return ErrorOf(files);
}

std::string ConfigError(const std::string& config_json) {
  ClipTokenizerFiles files = SmallFiles();
  files.tokenizer_config_json = config_json;
  return ErrorOf(files);
}

// Returns the real vocabulary with that tokenizer_config.json.
ClipTokenizer RealWithConfig(const std::string& config_json, std::optional<std::string> map_json = std::nullopt) {
  ClipTokenizerFiles files;
  for (const auto& [name, bytes] :
       {std::pair("vocab.json", &files.vocab_json), std::pair("merges.txt", &files.merges_txt)}) {
    absl::StatusOr<std::string> read = base::ReadWholeFile(absl::StrCat(kClip, "/", name), name, 64 << 20);
    EXPECT_TRUE(read.ok()) << read.status();
    *bytes = *std::move(read);
  }
  files.tokenizer_config_json = config_json;
  files.special_tokens_map_json = std::move(map_json);
  return ParseClip(files);
}

TEST(ClipTokenizer, GivesTheGoldenIdsOfTheRealVocabulary) { ExpectGolden(LoadClip(), ReadGoldenTokens("clip_full")); }

TEST(ClipTokenizer, GivesTheGoldenIdsOfEveryClipFolder) {
  for (const auto& [name, folder] :
       {std::pair("sd3.tokenizer", "sd3/tokenizer"), std::pair("sd3.tokenizer_2", "sd3/tokenizer_2"),
        std::pair("flux_dev.tokenizer", "flux_dev/tokenizer")}) {
    ExpectGolden(LoadClip(std::string("tests/golden/pipelines/") + folder), ReadGoldenTokens(name));
  }
}

TEST(ClipTokenizer, ReportsWhatItsFilesSay) {
  const ClipTokenizer tokenizer = LoadClip();
  EXPECT_EQ(tokenizer.vocabulary_size(), 49408);
  EXPECT_EQ(tokenizer.pad_id(), kEnd);
  EXPECT_EQ(tokenizer.end_id(), kEnd);
  EXPECT_EQ(tokenizer.model_max_length(), 77);
}

// The expected ids below that are not in the goldens were computed with transformers 5.23 and tokenizers 0.23.

TEST(ClipTokenizer, TheExclamationMarkIsASpecialTokenWhereItIsThePadding) {
  EXPECT_THAT(Ids(LoadClip(kPaddedWithExclamationMark), "hi ! x!!"), ElementsAre(1512, 71, 328, 0, 343, 0, 0, 1513));
}

TEST(ClipTokenizer, ASpecialTokensTextInCapitalsIsThreeWords) {
  EXPECT_THAT(Ids(LoadClip(), "<|ENDOFTEXT|> a"), ElementsAre(kStart, 27, 347, 40786, 4160, 91, 285, 320, kEnd));
}

TEST(ClipTokenizer, ASpecialTokenThatIsNormalizedIsFoundInCapitals) {
  const ClipTokenizer tokenizer =
      RealWithConfig(R"({"added_tokens_decoder": {"49407": {"content": "<|endoftext|>", "normalized": true}}})");
  EXPECT_THAT(Ids(tokenizer, "<|ENDOFTEXT|> a"), ElementsAre(kStart, kEnd, 320, kEnd));
}

TEST(ClipTokenizer, AddedTokensHeedWordsAndSwallowWhiteSpaceAsTheySay) {
  const ClipTokenizer tokenizer = RealWithConfig(R"({"added_tokens_decoder": {
      "49408": {"content": "<St Yle>", "normalized": true, "single_word": true},
      "49409": {"content": "Foo", "rstrip": true, "single_word": true}}})");
  EXPECT_THAT(Ids(tokenizer, "a <st yle> b"), ElementsAre(kStart, 320, 49408, 321, kEnd));
  EXPECT_THAT(Ids(tokenizer, "x<ST YLE>"), ElementsAre(kStart, 343, 283, 545, 10770, 285, kEnd));
  EXPECT_THAT(Ids(tokenizer, "Foo foo  xFoo Foo_ Foo-b"),
              ElementsAre(kStart, 49409, 23435, 87, 23435, 23435, 318, 49409, 268, 321, kEnd));
  EXPECT_EQ(tokenizer.vocabulary_size(), 49410);
}

TEST(ClipTokenizer, LowersEveryCharacterByItself) {
  EXPECT_THAT(Ids(LoadClip(), "İstanbul ΣΑΣ"),
              ElementsAre(kStart, 328, 16384, 11231, 139, 225, 138, 109, 139, 481, kEnd));
}

TEST(ClipTokenizer, TakesContractionsInCapitalsAndNumbersOneByOne) {
  const ClipTokenizer tokenizer = LoadClip();
  EXPECT_THAT(Ids(tokenizer, "x'S y'LL 'sx"), ElementsAre(kStart, 343, 568, 344, 1342, 568, 343, kEnd));
  EXPECT_THAT(Ids(tokenizer, "²³½ Ⅷ ٣"), ElementsAre(kStart, 41175, 126, 367, 33613, 158, 227, 371, 149, 352, kEnd));
}

TEST(ClipTokenizer, TheMapNamesThePaddingUnlessTheConfigStatesIds) {
  EXPECT_EQ(RealWithConfig(R"({"pad_token": "<|endoftext|>"})", R"({"pad_token": {"content": "!"}})").pad_id(), 0);
  EXPECT_EQ(RealWithConfig(R"({"added_tokens_decoder": {"0": {"content": "!"}}})", R"({"pad_token": "!"})").pad_id(),
            kEnd);
}

TEST(ClipTokenizer, TruncationKeepsTheEndTokenAndReportsWhatWasCut) {
  const absl::StatusOr<TokenIds> tokens = LoadClip().Encode("a Photo  of a cat", 5);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(kStart, 320, 1125, 539, kEnd));
  EXPECT_EQ(tokens->tokens_before_truncation, 7);
  EXPECT_TRUE(tokens->truncated);
  EXPECT_EQ(tokens->cut_text, "a cat");
}

TEST(ClipTokenizer, ReportsWhatWasCutInTheOriginalsSpelling) {
  const absl::StatusOr<TokenIds> tokens = LoadClip().Encode("a\u00A0 E\u0301T\u00C9 d'O\u0308", 3);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->cut_text, "E\u0301T\u00C9 d'O\u0308");
}

TEST(ClipTokenizer, ACharacterThatIsCutInTwoCountsAsCutOff) {
  const absl::StatusOr<TokenIds> tokens = LoadClip().Encode("\u9760", 3);  // has three tokens
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_TRUE(tokens->truncated);
  EXPECT_EQ(tokens->cut_text, "\u9760");
}

TEST(ClipTokenizer, ATextOfExactlyTheMaximumIsNotTruncated) {
  const absl::StatusOr<TokenIds> tokens = LoadClip().Encode("a photo of a cat", 7);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_FALSE(tokens->truncated);
  EXPECT_EQ(tokens->cut_text, "");
}

// With quadratic time for any of these the test would exceed its timeout.
TEST(ClipTokenizer, AMillionBytesAreEncoded) {
  const ClipTokenizer tokenizer = LoadClip();
  for (const std::string_view part :
       {"a photo of a cat, ", "x", "thean", "!", "<", "<|endoftext|>", " ", "\u732B", "\u0301\u0323"}) {
    std::string text;
    while (text.size() < 1000000) text += part;
    EXPECT_THAT(Ids(tokenizer, text, 77).back(), kEnd) << part;
  }
}

TEST(ClipTokenizer, MergesInTheOrderOfTheListTheLeftmostFirst) {
  const ClipTokenizer tokenizer = ParseClip(SmallFiles());
  EXPECT_THAT(Ids(tokenizer, "ab"), ElementsAre(11, 8, 12));
  EXPECT_THAT(Ids(tokenizer, "abab"), ElementsAre(11, 9, 12));
  EXPECT_THAT(Ids(tokenizer, "bab"), ElementsAre(11, 10, 12));
}

TEST(ClipTokenizer, BytesWithoutATokenAreUnknown) {
  EXPECT_THAT(Ids(ParseClip(SmallFiles()), "ac xy"), ElementsAre(11, 0, 12, 12, 12, 12));
}

TEST(ClipTokenizer, ReadsLinesWithCarriageReturnsAndWithoutVersion) {
  ClipTokenizerFiles files = SmallFiles();
  files.merges_txt = "a b\r\nb ab</w>\r\na b</w>\r\nab ab</w>\r\n\r\n";
  EXPECT_THAT(Ids(ParseClip(files), "abab"), ElementsAre(11, 9, 12));
}

TEST(ClipTokenizer, RefusesInvalidUtf8NamingTheField) {
  const absl::StatusOr<TokenIds> tokens = LoadClip().Encode("ab\xC3(", 10, "negative_prompt");
  EXPECT_TRUE(absl::IsInvalidArgument(tokens.status()));
  EXPECT_THAT(std::string(tokens.status().message()),
              HasSubstr("negative_prompt: the text is not valid UTF-8 at byte 2"));
}

TEST(ClipTokenizer, RefusesANulCharacter) {
  EXPECT_THAT(std::string(LoadClip().Encode(std::string_view("a\0b", 3), 10).status().message()),
              HasSubstr("NUL character at byte 1"));
}

TEST(ClipTokenizer, RefusesALengthWithoutRoomForStartAndEnd) {
  EXPECT_EQ(Ids(LoadClip(), "cat", 2), (std::vector<int64_t>{kStart, kEnd}));
  EXPECT_THAT(std::string(LoadClip().Encode("cat", 1).status().message()), HasSubstr("at least 2"));
}

TEST(ClipTokenizer, NamesAMissingFileRelativeToTheModel) {
  const absl::Status status = ClipTokenizer::Load("tests/golden/pipelines/hunyuan11/tokenizer").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "cannot open tokenizer/vocab.json: No such file or directory");
}

TEST(ClipVocabulary, RefusesTwoTokensWithOneId) {
  EXPECT_THAT(VocabularyError(R"({"a": 0, "b": 0})"),
              HasSubstr(R"(tokenizer/vocab.json: "a" and "b" have the same id, 0)"));
}

TEST(ClipVocabulary, RefusesANegativeId) {
  EXPECT_THAT(VocabularyError(R"({"a": -1, "b": 0})"), HasSubstr(R"(tokenizer/vocab.json: the id of "a" is -1)"));
}

TEST(ClipVocabulary, RefusesAGap) {
  EXPECT_THAT(VocabularyError(R"({"a": 0, "b": 2})"),
              HasSubstr(R"(the id of "b" is 2; with 2 tokens the ids are the whole numbers from 0 to 1)"));
}

TEST(ClipVocabulary, RefusesAnIdThatIsNoInteger) {
  EXPECT_THAT(VocabularyError(R"({"a": "0", "b": 1})"), HasSubstr(R"(the id of "a" is "0")"));
  EXPECT_THAT(VocabularyError(R"({"a": 0.0, "b": 1})"), HasSubstr(R"(the id of "a" is 0)"));
  EXPECT_THAT(VocabularyError(R"({"a": 18446744073709551616})"), HasSubstr(R"(the id of "a" is)"));
}

TEST(ClipVocabulary, RefusesATokenThatIsWrittenTwice) {
  EXPECT_THAT(VocabularyError(R"({"a": 0, "a": 1})"), HasSubstr("tokenizer/vocab.json"));
}

TEST(ClipVocabulary, RefusesWhatIsNoObjectOfTokens) {
  for (const char* text : {"", "[]", "{}", "3", "{\"a\": 0", "\xFF", "{\"\xFF\": 0}"}) {
    EXPECT_THAT(VocabularyError(text), testing::StartsWith("tokenizer/vocab.json")) << text;
  }
}

TEST(ClipVocabulary, RefusesAVocabularyWithoutStartOrEndToken) {
  ClipTokenizerFiles files{.vocab_json = R"({"a": 0, "<|endoftext|>": 1})", .tokenizer_config_json = "{}"};
  EXPECT_THAT(ErrorOf(files), HasSubstr(R"("<|startoftext|>" is not in tokenizer/vocab.json)"));
  files.vocab_json = R"({"a": 0, "<|startoftext|>": 1})";
  EXPECT_THAT(ErrorOf(files), HasSubstr(R"("<|endoftext|>" is not in tokenizer/vocab.json)"));
}

TEST(ClipMerges, RefusesATokenThatTheVocabularyLacks) {
  EXPECT_EQ(MergesError("#version: 0.2\na b\na z\n"),
            R"(tokenizer/merges.txt: line 3 joins "z", which tokenizer/vocab.json does not have)");
}

TEST(ClipMerges, RefusesAMergeWhoseResultTheVocabularyLacks) {
  EXPECT_EQ(MergesError("a c\n"),
            R"(tokenizer/merges.txt: line 1 makes "ac", which tokenizer/vocab.json does not have)");
}

TEST(ClipMerges, RefusesALineThatIsNotTwoTokens) {
  for (const char* line : {"ab", "a", " a", "a ", "a b c", "a  b", " ", "\xFF", "a\tb"}) {
    EXPECT_THAT(MergesError(absl::StrCat("#version: 0.2\n", line, "\n")),
                testing::StartsWith("tokenizer/merges.txt: line 2 "))
        << line;
  }
}

TEST(ClipMerges, RefusesARepeatedMerge) {
  EXPECT_THAT(MergesError("a b\nb ab</w>\na b\n"),
              HasSubstr(R"(tokenizer/merges.txt: line 3 repeats the merge "a b")"));
}

TEST(ClipConfig, RefusesAnotherTokenizersConfig) {
  EXPECT_THAT(ConfigError(R"({"tokenizer_class": "T5Tokenizer"})"),
              testing::AllOf(HasSubstr("tokenizer/tokenizer_config.json"), HasSubstr("tokenizer_class")));
}

TEST(ClipConfig, RefusesAPaddingTokenThatTheVocabularyLacks) {
  EXPECT_THAT(ConfigError(R"({"pad_token": "[PAD]"})"), HasSubstr(R"("[PAD]" is not in tokenizer/vocab.json)"));
}

TEST(ClipConfig, RefusesAnIdThatContradictsTheVocabulary) {
  EXPECT_THAT(ConfigError(R"({"added_tokens_decoder": {"7": {"content": "!"}}})"),
              EndsWith(R"(gives "!" the id 7; in tokenizer/vocab.json it is 3)"));
}

TEST(ClipConfig, RefusesAddedTokensThatAreMalformed) {
  for (const char* decoder : {R"({"x": {"content": "y"}})", R"({"-1": "y"})", R"({"20": 3})", R"({"20": ""})",
                              R"({"99999999999": "y"})", R"({"20": "y", "020": "z"})", R"({"20": "y", "21": "y"})"}) {
    EXPECT_THAT(ConfigError(absl::StrCat(R"({"added_tokens_decoder": )", decoder, "}")),
                HasSubstr("tokenizer/tokenizer_config.json: field \"added_tokens_decoder\""))
        << decoder;
  }
}

TEST(ClipConfig, RefusesAMaximumLengthBelowOne) {
  EXPECT_THAT(ConfigError(R"({"model_max_length": 0})"), HasSubstr("model_max_length"));
}

}  // namespace
}  // namespace tessera::models
