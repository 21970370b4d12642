// Compares the tokenizers that weight files hold with the golden ones that they were made from.
#include "models/tokenizers/stored_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/json/json_writer.h"
#include "models/tokenizers/byte_characters.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;

constexpr const char* kQwen = "tests/golden-newer/pipelines/z_image_turbo/tokenizer";
constexpr const char* kTekken = "tests/golden-edit/pipelines/flux2_dev/tokenizer";
constexpr const char* kTexts[] = {
    "a red apple on a table",
    "It's 1234 o'clock,\n\n  isn't it?  ",
    "Ünïcödé, e\u0301 and \u00e9; 猫が好き \U0001F600\U0001F680",
    "<|im_start|>user\nthe cat<|im_end|>",
    "[INST]two dogs[/INST]</s>",
    "",
    "    \t x\r\ny/z//",
};

base::Json GoldenFile(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      base::ReadWholeFile(folder + "/tokenizer.json", "tokenizer.json", size_t{64} << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return *base::ParseJson(text.value_or("{}"), "tokenizer.json");
}

// The vocabulary as llama.cpp's converter writes it.
GgufVocabulary VocabularyOf(const base::Json& file, const std::string& pre) {
  std::map<int64_t, std::pair<std::string, int64_t>> tokens;
  const base::Json& model = *file.Find("model");
  for (const base::JsonMember& token : model.Find("vocab")->members()) {
    tokens[*token.value.AsInt()] = {token.key, 1};
  }
  for (const base::Json& token : file.Find("added_tokens")->items()) {
    tokens[*token.Find("id")->AsInt()] = {*token.Find("content")->AsString(), *token.Find("special")->AsBool() ? 3 : 4};
  }
  GgufVocabulary vocabulary{.model = "gpt2", .pre = pre};
  for (const auto& [id, token] : tokens) {
    EXPECT_EQ(id, std::ssize(vocabulary.tokens));
    vocabulary.tokens.push_back(token.first);
    vocabulary.types.push_back(token.second);
  }
  for (const base::Json& merge : model.Find("merges")->items()) {
    vocabulary.merges.push_back(absl::StrCat(*merge.items()[0].AsString(), " ", *merge.items()[1].AsString()));
  }
  return vocabulary;
}

void ExpectSameIds(const absl::StatusOr<JsonTokenizerFiles>& made, TokenizerKind kind, const std::string& folder) {
  ASSERT_TRUE(made.ok()) << made.status();
  const absl::StatusOr<JsonTokenizer> tokenizer = JsonTokenizer::Parse(kind, *made, "made");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> golden = JsonTokenizer::LoadIfThere(kind, folder);
  ASSERT_TRUE(golden.ok()) << golden.status();
  for (const char* text : kTexts) {
    EXPECT_EQ(tokenizer->Encode(text, 512)->ids, (*golden)->Encode(text, 512)->ids) << text;
    EXPECT_EQ(tokenizer->EncodeBare(text, 512)->ids, (*golden)->EncodeBare(text, 512)->ids) << text;
  }
  EXPECT_EQ(tokenizer->pads_left(), (*golden)->pads_left());
  EXPECT_EQ(tokenizer->pad_id(), (*golden)->pad_id());
}

int64_t IdOf(const GgufVocabulary& vocabulary, const std::string& token) {
  const auto found = std::ranges::find(vocabulary.tokens, token);
  return found == vocabulary.tokens.end() ? -1 : found - vocabulary.tokens.begin();
}

TEST(StoredTokenizerTest, AVocabularyOfQwenMakesTheIdsOfItsFiles) {
  GgufVocabulary vocabulary = VocabularyOf(GoldenFile(kQwen), "qwen2");
  vocabulary.end = IdOf(vocabulary, "<|im_end|>");
  vocabulary.padding = IdOf(vocabulary, "<|endoftext|>");
  ExpectSameIds(TokenizerOfGguf(vocabulary), TokenizerKind::kQwen2, kQwen);
}

TEST(StoredTokenizerTest, AVocabularyOfMistralMakesTheIdsOfItsFiles) {
  GgufVocabulary vocabulary = VocabularyOf(GoldenFile(kTekken), "tekken");
  vocabulary.begin = IdOf(vocabulary, "<s>");
  vocabulary.padding = IdOf(vocabulary, "<pad>");
  vocabulary.adds_begin = true;
  ExpectSameIds(TokenizerOfGguf(vocabulary), TokenizerKind::kOther, kTekken);
}

// The text of a tekken.json with the tokens of a tokenizer.json, whose special tokens come first.
std::string TekkenOf(const base::Json& file) {
  std::map<char32_t, unsigned char> bytes;
  for (int byte = 0; byte < 256; ++byte)
    bytes[ByteCharacters()[static_cast<size_t>(byte)]] = static_cast<unsigned char>(byte);
  std::map<int64_t, std::string> tokens;
  for (const base::JsonMember& token : file.Find("model")->Find("vocab")->members())
    tokens[*token.value.AsInt()] = token.key;
  std::set<int64_t> special;
  base::JsonWriter named;
  named.BeginArray();
  for (const base::Json& token : file.Find("added_tokens")->items()) {
    const int64_t id = *token.Find("id")->AsInt();
    special.insert(id);
    named.BeginObject().Key("rank").Int(id).Key("token_str").String(*token.Find("content")->AsString()).EndObject();
  }
  base::JsonWriter list;
  list.BeginArray();
  int64_t first = -1;
  for (const auto& [id, text] : tokens) {
    if (special.contains(id)) continue;
    if (first < 0) first = id;
    std::string raw;
    for (size_t i = 0; i < text.size();) {
      const auto lead = static_cast<unsigned char>(text[i]);
      const bool is_two = lead >= 0x80;
      const char32_t character =
          is_two ? ((lead & 0x1FU) << 6) | (static_cast<unsigned char>(text[i + 1]) & 0x3FU) : lead;
      raw += static_cast<char>(bytes.at(character));
      i += is_two ? 2 : 1;
    }
    list.BeginObject().Key("rank").Int(id - first).Key("token_bytes").String(absl::Base64Escape(raw)).EndObject();
  }
  base::JsonWriter writer;
  writer.BeginObject().Key("config").BeginObject().Key("default_num_special_tokens").Int(first);
  writer.Key("default_vocab_size").Int(tokens.rbegin()->first + 1).EndObject();
  writer.Key("vocab").Json((list.EndArray(), list.text())).Key("special_tokens").Json((named.EndArray(), named.text()));
  return writer.EndObject(), writer.text();
}

TEST(StoredTokenizerTest, ATekkenFileMakesTheIdsOfTheTokenizer) {
  ExpectSameIds(TokenizerOfTekken(TekkenOf(GoldenFile(kTekken))), TokenizerKind::kOther, kTekken);
}

TEST(StoredTokenizerTest, ATekkenFileIsReadFromATensorOfComfyUi) {
  const std::string tekken = TekkenOf(GoldenFile(kTekken));
  const TestFolder folder;
  const std::string path = folder.Write(
      "mistral.safetensors", SafetensorsBytes(absl::StrCat(R"({"tekken_model":{"dtype":"U8","shape":[)", tekken.size(),
                                                           R"(],"data_offsets":[0,)", tekken.size(), "]}}"),
                                              tekken));
  ExpectSameIds(ReadStoredTokenizer(path), TokenizerKind::kOther, kTekken);
  EXPECT_EQ(ReadStoredTokenizer(folder.Write("x.safetensors", OneTensor("a"))).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(StoredTokenizerTest, WhatIsNotKnownOrDisagreesIsNamed) {
  const auto error = [](const GgufVocabulary& vocabulary) {
    return std::string(TokenizerOfGguf(vocabulary).status().message());
  };
  const GgufVocabulary good = VocabularyOf(GoldenFile(kQwen), "qwen2");
  GgufVocabulary other = good;
  other.pre = "llama-bpe";
  EXPECT_THAT(error(other), HasSubstr("\"llama-bpe\""));
  other = good;
  other.model = "llama";
  EXPECT_THAT(error(other), HasSubstr("\"llama\""));
  other = good;
  other.types.pop_back();
  EXPECT_THAT(error(other), HasSubstr("token_type"));
  other = good;
  other.end = std::ssize(good.tokens);
  EXPECT_THAT(error(other), HasSubstr("outside the vocabulary"));
  other = good;
  other.merges[0] = "no-pair";
  EXPECT_THAT(error(other), HasSubstr("no pair"));
  other = good;
  other.tokens[0] = "\xff";
  EXPECT_THAT(error(other), HasSubstr("no UTF-8"));
  EXPECT_THAT(error({}), HasSubstr("empty"));
  for (const char* tekken : {"", "{}", R"({"vocab": [{}]})", R"({"vocab": [], "special_tokens": [{"rank": -1}]})",
                             R"({"vocab": [], "config": {"default_vocab_size": "x"}})"}) {
    EXPECT_FALSE(TokenizerOfTekken(tekken).ok()) << tekken;
  }
}

}  // namespace
}  // namespace tessera::models
