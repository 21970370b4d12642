// BytePairs implements byte pair encoding with an end-of-word mark, as used by CLIP. It reads and checks vocab.json and
// merges.txt.
//
// The bytes of a word are written as printable characters, the last one followed by "</w>". Then the pair that comes
// first in the list of merges is joined, the leftmost first, until no pair is left. Immutable and thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/pair_merges.h"
#include "models/tokenizers/token_table.h"

namespace tessera::models {

class BytePairs {
 public:
  // Errors name the files as component/vocab.json and component/merges.txt. Returns InvalidArgument unless the ids are
  // 0 to n-1, each once, and for merges that are malformed, repeated, or contain tokens that the vocabulary lacks.
  static absl::StatusOr<BytePairs> Parse(std::string_view vocab_json, std::string_view merges_txt,
                                         const std::string& component);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::optional<int64_t> Find(std::string_view token) const;

  // Appends the pieces of a word, each with the offset of its first byte. Bytes without a token become `unknown_id`.
  // Time is n log n in the bytes.
  void Encode(std::string_view word, int64_t unknown_id, std::vector<PairMerges::Piece>& pieces) const;

 private:
  BytePairs() = default;
  absl::Status ReadVocabulary(std::string_view json, const std::string& name);
  absl::Status ReadMerges(std::string_view text, const std::string& name, const std::string& vocabulary_name);

  TokenTable<int32_t> ids_;
  PairMerges merges_;
  // Ids of single bytes within a word and at its end; -1 if the vocabulary lacks them.
  std::array<int32_t, 256> inner_ids_{};
  std::array<int32_t, 256> last_ids_{};
};

}  // namespace tessera::models
