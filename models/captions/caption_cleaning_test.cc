#include "models/captions/caption_cleaning.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "base/json/json.h"

namespace tessera::models {
namespace {

base::Json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<base::Json> json = base::ParseJson(*text, path);
  EXPECT_TRUE(json.ok()) << json.status();
  return *std::move(json);
}

std::string Text(const base::Json& row, const char* key) { return *row.Find(key)->AsString(); }

TEST(CaptionCleaning, GivesTheGoldenTextOfEveryPrompt) {
  const base::Json golden = ReadJson("tests/golden/functions/pixart_text_preprocessing.json");
  ASSERT_EQ(golden.items().size(), 28u);
  for (const base::Json& row : golden.items()) {
    EXPECT_EQ(CleanCaption(Text(row, "prompt")).value(), Text(row, "cleaned"));
    EXPECT_EQ(PlainCaption(Text(row, "prompt")), Text(row, "plain"));
  }
}

TEST(CaptionCleaning, CleansHostilePromptsAsTheReferenceDoes) {
  const base::Json golden = ReadJson("tests/golden_text/pixart_captions.json");
  const std::span<const base::Json> rows = golden.Find("rows")->items();
  ASSERT_GE(rows.size(), 150u);
  for (const base::Json& row : rows) {
    EXPECT_EQ(CleanCaption(Text(row, "prompt")).value(), Text(row, "cleaned")) << base::Quote(Text(row, "prompt"));
  }
}

TEST(CaptionCleaning, ReplacesIllFormedUtf8) {
  EXPECT_EQ(CleanCaption("a\xC3(b").value(), "a\uFFFD b");
  EXPECT_EQ(PlainCaption(" A\xFF "), "a\uFFFD");
}

TEST(CaptionCleaning, KeepsTheTextWhoseMarkupTheReferenceRefuses) {
  EXPECT_EQ(CleanCaption("a <![x b").value(), "a <! x b");
}

// Each of these makes a backtracking or restarting parser quadratic; the time limit of the test is the deadline.
TEST(CaptionCleaning, TakesLinearTimeForHostileTexts) {
  for (const std::string_view part : {"a",
                                      "<a ",
                                      "<a b='",
                                      "<!--",
                                      "</",
                                      "&#1",
                                      "&a",
                                      ". ",
                                      "a.com",
                                      "-",
                                      "\"'",
                                      "1.1x1.1 ",
                                      ".jpg",
                                      "worldwide ",
                                      "<![cdata[] ] ",
                                      "<script></script x",
                                      "\xC3\x83\xC2\xA9",
                                      "%25",
                                      "1:11 ",
                                      "\xCC\x81",
                                      "<b>"}) {
    std::string text;
    while (text.size() < 100000) text += part;
    EXPECT_LE(CleanCaption(text).value().size(), 3 * text.size()) << part;
  }
}

// A pattern that is quadratic in one of these exceeds its bound on steps.
TEST(CaptionCleaning, NeverTakesTooManyStepsForTheLongestPrompt) {
  constexpr size_t kLongest = 32768;
  for (const auto& [begin, repeated] : std::vector<std::pair<std::string, std::string>>{{"", "a."},
                                                                                        {"", "a-"},
                                                                                        {"", "a.com@"},
                                                                                        {"", "http:a."},
                                                                                        {"", "www:a."},
                                                                                        {"", " "},
                                                                                        {"a.com", "b"},
                                                                                        {"", "1"},
                                                                                        {"a1a", "1"},
                                                                                        {"1x", "1"},
                                                                                        {"1.", "1"},
                                                                                        {"", "\u0153 "},
                                                                                        {"page ", "1"},
                                                                                        {"", "a1"},
                                                                                        {"a", "."},
                                                                                        {"1:11", " "},
                                                                                        {"", "''"},
                                                                                        {"", "free "}}) {
    std::string text = begin;
    while (text.size() + repeated.size() + 2 <= kLongest) text += repeated;
    for (const char* end : {"", "@", "\u00E9"}) EXPECT_TRUE(CleanCaption(text + end).ok()) << begin << repeated << end;
  }
}

}  // namespace
}  // namespace tessera::models
