// Reads from a tokenizer's files which tokens a text may contain literally, such as <|endoftext|>, [SEP] or </s>, and
// finds them in a text.
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
#include "base/json/json.h"
#include "models/tokenizers/token_table.h"

namespace tessera::models {

struct AddedToken {
  std::string text;
  int64_t id = 0;
  bool strips_left = false;   // includes the white space before it
  bool strips_right = false;  // includes the white space after it
  bool single_word = false;   // not found within a word
  bool normalized = false;    // searched in the normalized text instead of the original
  bool special = false;       // a mark rather than text: not found if special tokens are split like text
};

// Holds tokenizer_config.json, special_tokens_map.json and added_tokens.json. As in the reference, the second is used
// only if the first has no added_tokens_decoder, and then takes precedence. The third must not contradict the first.
class TokenNames {
 public:
  // `component` is the folder's name in the model, which errors begin with.
  static absl::StatusOr<TokenNames> Parse(std::string_view config_json, const std::optional<std::string>& map_json,
                                          const std::optional<std::string>& added_json, const std::string& component);

  base::ConfigReader& config() { return config_; }
  // Reads the field model_max_length. Python writes "no limit" as an integer of 31 digits.
  int64_t ModelMaxLength();
  // Reads the field split_special_tokens: whether special tokens are not searched for in texts.
  bool SplitsSpecialTokens();

  // Returns the text of the token that a field names, e.g. pad_token.
  std::string Token(std::string_view key, std::string_view fallback) const;
  std::set<std::string> AdditionalTokens() const;
  // The tokens whose ids are given by the files (added_tokens_decoder, added_tokens.json), by text.
  const std::map<std::string, AddedToken>& stated() const { return stated_; }
  const std::string& stated_by() const { return stated_by_; }
  // Returns the texts of all fields whose names end in "_token", and AdditionalTokens.
  std::set<std::string> NamedTokens() const;

  struct Field {
    std::string_view key;
    std::string_view fallback;  // may be missing from the vocabulary if no file names it and it is not required
    bool required = true;
  };
  // Returns all tokens that these fields name or that the files list or give ids for. `find` looks a text up in the
  // vocabulary, which errors call `vocabulary_name`. Returns InvalidArgument for a token without an id, or with an id
  // that the vocabulary contradicts.
  absl::StatusOr<std::vector<AddedToken>> Resolve(std::span<const Field> fields,
                                                  const std::function<std::optional<int64_t>(const std::string&)>& find,
                                                  const std::string& vocabulary_name) const;

 private:
  explicit TokenNames(base::ConfigReader config) : config_(std::move(config)) {}
  void ReadStated();
  absl::Status ReadAddedFile(const std::string& json, const std::string& name);

  base::ConfigReader config_;
  std::vector<base::Json> files_;  // the files in use; the first that names a token wins
  std::map<std::string, AddedToken> stated_;
  std::string stated_by_;  // file and field, for errors
};

// Finds tokens in a text. Immutable and thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // No token's text may be empty. With `splits_special`, special tokens are treated as ordinary text.
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens, bool splits_special = false);

  bool empty() const { return lengths_.empty(); }

  struct Match {
    size_t begin, end;  // includes the white space that the token takes
    int64_t id;
  };
  // Returns the matches from left to right, the longest if several begin at the same position. Time is linear in the
  // text.
  std::vector<Match> Find(std::string_view utf8) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  TokenTable<AddedToken> tokens_;
  std::vector<size_t> lengths_;  // distinct lengths of the tokens, longest first
  std::array<bool, 256> begins_token_{};
  bool splits_special_ = false;
};

}  // namespace tessera::models
