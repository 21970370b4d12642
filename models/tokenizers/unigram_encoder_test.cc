#include "models/tokenizers/unigram_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/files/file.h"
#include "base/json/json.h"
#include "tests/support/sentencepiece_library.h"

namespace tessera::models {
namespace {

constexpr const char* kModels[] = {"tests/golden/pipelines/pixart_alpha/tokenizer/spiece.model",
                                   "tests/golden/pipelines/hunyuan11/tokenizer_2/spiece.model"};

SentencePieceModel LoadModel(const std::string& path) {
  const absl::StatusOr<std::string> bytes = base::ReadWholeFile(path, path, 64 << 20);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  absl::StatusOr<SentencePieceModel> model = SentencePieceModel::Parse(*bytes, path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Returns words of the model, characters outside it, and characters that normalization changes, drawn with a fixed
// seed.
std::vector<std::string> RandomTexts(const SentencePieceModel& model, int count) {
  const std::vector<std::string> odd = {" ",  "  ", "\n",     "\t", "\u3000",  "\u200b", "\u00a0",   "ＦＵＬＬ",
                                        "ｶﾞ", "①",  "ﬁ",      "é",  "e\u0301", "🐱",      "👩\u200d👧", "猫",
                                        "Ω",  "½",  "\u2581", "…",  "™",       "a",      "the",      "cat",
                                        "!",  "0",  "\u0007", "㎏", "ǆ",       "\ufeff", "한",       "각"};
  std::mt19937 random(20240607);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int part = std::uniform_int_distribution(0, 12)(random); part > 0; --part) {
      if (std::uniform_int_distribution(0, 1)(random) == 0) {
        text += odd[std::uniform_int_distribution<size_t>(0, odd.size() - 1)(random)];
      } else {
        const auto id = std::uniform_int_distribution<int64_t>(0, model.size() - 1)(random);
        text += model.piece(id).text;
      }
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

TEST(UnigramEncoder, GivesTheIdsOfTheSentencepieceLibrary) {
  for (const char* path : kModels) {
    const SentencePieceModel model = LoadModel(path);
    const std::vector<std::string> texts = RandomTexts(model, 5000);
    const auto expected = EncodeWithLibrary(path, texts);
    ASSERT_EQ(expected.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<int64_t> ids;
      for (const PieceId& piece : EncodeUnigram(model, texts[i])) ids.push_back(piece.id);
      ASSERT_THAT(ids, testing::ElementsAreArray(expected[i])) << path << ": " << base::Quote(texts[i]);
    }
  }
}

TEST(UnigramEncoder, ATextOfWhiteSpaceHasNoPieces) {
  EXPECT_THAT(EncodeUnigram(LoadModel(kModels[0]), " \n\t\u3000 "), testing::IsEmpty());
}

TEST(UnigramEncoder, OffsetsPointAtTheOriginalText) {
  const SentencePieceModel model = LoadModel(kModels[0]);
  const std::vector<PieceId> pieces = EncodeUnigram(model, "a photo  of");
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(model.piece(pieces[1].id).text, "▁photo");
  EXPECT_EQ(pieces[1].begin, 1u);
  EXPECT_EQ(model.piece(pieces[2].id).text, "▁");
  EXPECT_EQ(pieces[2].begin, 7u);
}

TEST(SentencePieceModel, EveryTruncationOfAModelIsRefusedOrReadWithoutHarm) {
  const absl::StatusOr<std::string> bytes = base::ReadWholeFile(kModels[0], "spiece.model", 64 << 20);
  ASSERT_TRUE(bytes.ok());
  for (size_t size = 0; size < bytes->size(); size += 997) {
    const absl::StatusOr<SentencePieceModel> model =
        SentencePieceModel::Parse(std::string_view(*bytes).substr(0, size), "tokenizer/spiece.model");
    if (model.ok()) {
      EncodeUnigram(*model, "a photo of a ｃａｔ");
    } else {
      EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr("tokenizer/spiece.model"));
    }
  }
}

}  // namespace
}  // namespace tessera::models
