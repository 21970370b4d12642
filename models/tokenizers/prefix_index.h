// PrefixIndex is a sorted list of texts that finds those which a given text begins with. Immutable and thread-safe once
// built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::models {

class PrefixIndex {
 public:
  PrefixIndex() = default;
  // `texts` are distinct texts with their ids.
  explicit PrefixIndex(std::vector<std::pair<std::string, int32_t>> texts);

  // Narrows the texts, byte by byte, to those that begin with a given text.
  class Search {
   public:
    explicit Search(const PrefixIndex& index) : index_(index), low_(0), high_(index.texts_.size()) {}
    // Returns false if no text begins with the bytes so far and this one.
    bool Advance(char byte);
    // Returns the id of the text that consists of the bytes so far, if there is one.
    std::optional<int64_t> Match() const;

   private:
    const PrefixIndex& index_;
    size_t low_, high_;
    size_t depth_ = 0;
  };

 private:
  std::vector<std::pair<std::string, int32_t>> texts_;  // std::string orders by unsigned bytes
};

}  // namespace tessera::models
