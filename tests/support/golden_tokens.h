// Reads the rows of a golden token file and compares a tokenizer with them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/json/json.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera {

struct GoldenRow {
  std::string prompt;
  std::vector<int64_t> ids, truncated_ids, sentencepiece_ids;
  int64_t length = 0;  // of the truncated ids
  int64_t pad_id = 0;
};

struct GoldenTokens {
  int64_t max_length = 0;
  std::vector<GoldenRow> rows;
};

inline GoldenTokens ReadGoldenTokens(const std::string& name) {
  const std::string path = "tests/golden/tokenizers/" + name + ".json";
  const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, 64 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<base::Json> json = base::ParseJson(*text, path);
  EXPECT_TRUE(json.ok()) << json.status();
  const auto numbers = [](const base::Json* list) {
    std::vector<int64_t> numbers;
    if (list == nullptr) return numbers;
    for (const base::Json& item : list->items()) numbers.push_back(item.AsInt().value());
    return numbers;
  };
  GoldenTokens golden{.max_length = json->Find("max_length")->AsInt().value()};
  for (const base::Json& row : json->Find("rows")->items()) {
    golden.rows.push_back({.prompt = *row.Find("prompt")->AsString(),
                           .ids = numbers(row.Find("ids")),
                           .truncated_ids = numbers(row.Find("truncated_ids")),
                           .sentencepiece_ids = numbers(row.Find("sentencepiece_ids")),
                           .length = row.Find("length")->AsInt().value(),
                           .pad_id = row.Find("pad_id")->AsInt().value()});
  }
  EXPECT_EQ(golden.rows.size(), 28u);
  return golden;
}

inline std::vector<int64_t> Ids(const models::Tokenizer& tokenizer, std::string_view text,
                                int64_t max_length = 100'000'000) {
  const absl::StatusOr<models::TokenIds> tokens = tokenizer.Encode(text, max_length);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return tokens.ok() ? tokens->ids : std::vector<int64_t>();
}

// Compares ids, truncated ids, length and padding of every row.
inline void ExpectGolden(const models::Tokenizer& tokenizer, const GoldenTokens& golden) {
  for (const GoldenRow& row : golden.rows) {
    EXPECT_EQ(Ids(tokenizer, row.prompt), row.ids) << row.prompt;
    const std::vector<int64_t> truncated = Ids(tokenizer, row.prompt, golden.max_length);
    EXPECT_EQ(truncated, row.truncated_ids.empty() ? row.ids : row.truncated_ids) << row.prompt;
    EXPECT_EQ(static_cast<int64_t>(truncated.size()), row.length) << row.prompt;
    EXPECT_EQ(tokenizer.pad_id(), row.pad_id);
  }
}

}  // namespace tessera
