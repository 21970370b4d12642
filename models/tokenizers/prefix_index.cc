#include "models/tokenizers/prefix_index.h"

#include <algorithm>

namespace tessera::models {

PrefixIndex::PrefixIndex(std::vector<std::pair<std::string, int32_t>> texts) : texts_(std::move(texts)) {
  std::sort(texts_.begin(), texts_.end());
}

bool PrefixIndex::Search::Advance(char byte) {
  const auto begin = index_.texts_.begin();
  // The byte at the current depth; texts that end here come first.
  const auto at_depth = [this](const std::pair<std::string, int32_t>& entry) {
    const std::string& text = entry.first;
    return depth_ < text.size() ? static_cast<int>(static_cast<unsigned char>(text[depth_])) : -1;
  };
  const int wanted = static_cast<unsigned char>(byte);
  const auto low =
      std::partition_point(begin + static_cast<std::ptrdiff_t>(low_), begin + static_cast<std::ptrdiff_t>(high_),
                           [&](const auto& entry) { return at_depth(entry) < wanted; });
  const auto high = std::partition_point(low, begin + static_cast<std::ptrdiff_t>(high_),
                                         [&](const auto& entry) { return at_depth(entry) == wanted; });
  low_ = static_cast<size_t>(low - begin);
  high_ = static_cast<size_t>(high - begin);
  ++depth_;
  return low_ < high_;
}

std::optional<int64_t> PrefixIndex::Search::Match() const {
  if (low_ == high_) return std::nullopt;
  const auto& [text, id] = index_.texts_[low_];  // the shortest comes first
  return text.size() == depth_ ? std::make_optional<int64_t>(id) : std::nullopt;
}

}  // namespace tessera::models
