// The tokens that a text may contain by their literal text, such as <|endoftext|>, [SEP] or </s>: what a tokenizer's
// files say of them, and how they are found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "models/tokenizers/token_table.h"

namespace tessera::models {

struct AddedToken {
  std::string text;
  int64_t id = 0;
  bool strips_left = false;   // swallows the white space before it
  bool strips_right = false;  // and behind it
  bool single_word = false;   // not found inside a word
  bool normalized = false;    // looked for in the normalized text, not in the original
  bool special = false;       // a mark and no text: not found where special tokens are split like text
};

// tokenizer_config.json, special_tokens_map.json and added_tokens.json. As in the reference, the second is heeded only
// if the first has no added_tokens_decoder, and then comes before it. The third must not contradict the first.
class TokenNames {
 public:
  // `component` is the folder's name in the model; errors begin with it.
  static absl::StatusOr<TokenNames> Parse(std::string_view config_json, const std::optional<std::string>& map_json,
                                          const std::optional<std::string>& added_json, const std::string& component);

  base::ConfigReader& config() { return config_; }
  // Of the field model_max_length. Python writes "no limit" as an integer of 31 digits.
  int64_t ModelMaxLength();
  // Of the field split_special_tokens: special tokens are not looked for in texts.
  bool SplitsSpecialTokens();

  // The text of the token that a field names, e.g. pad_token.
  std::string Token(std::string_view key, std::string_view fallback) const;
  std::set<std::string> AdditionalTokens() const;
  // By text: the tokens whose ids the files state themselves (added_tokens_decoder, added_tokens.json).
  const std::map<std::string, AddedToken>& stated() const { return stated_; }
  const std::string& stated_by() const { return stated_by_; }
  // The texts that fields whose names end in "_token" have, and AdditionalTokens.
  std::set<std::string> NamedTokens() const;

  struct Field {
    std::string_view key;
    std::string_view fallback;  // may be missing from the vocabulary if no file names it and it is not required
    bool required = true;
  };
  // All tokens that are named by these fields, listed or stated. `find` looks a text up in the vocabulary, which errors
  // call `vocabulary_name`. InvalidArgument: a token without an id, or with one that the vocabulary contradicts.
  absl::StatusOr<std::vector<AddedToken>> Resolve(std::span<const Field> fields,
                                                  const std::function<std::optional<int64_t>(const std::string&)>& find,
                                                  const std::string& vocabulary_name) const;

 private:
  explicit TokenNames(base::ConfigReader config) : config_(std::move(config)) {}
  void ReadStated();
  absl::Status ReadAddedFile(const std::string& json, const std::string& name);

  base::ConfigReader config_;
  std::vector<base::Json> files_;  // those that are heeded, the first that names a token wins
  std::map<std::string, AddedToken> stated_;
  std::string stated_by_;  // which file and field, for errors
};

// Immutable and thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // No text is empty. With `splits_special`, special tokens that are found are text like any other.
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens, bool splits_special = false);

  bool empty() const { return lengths_.empty(); }

  struct Match {
    size_t begin, end;  // swallowed white space included
    int64_t id;
  };
  // From left to right, the longest where several begin at the same place. Time is linear in the text.
  std::vector<Match> Find(std::string_view utf8) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  TokenTable<AddedToken> tokens_;
  std::vector<size_t> lengths_;  // of the tokens, each once, longest first
  std::array<bool, 256> begins_token_{};
  bool splits_special_ = false;
};

}  // namespace tessera::models
