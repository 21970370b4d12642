#include "models/tokenizers/pair_merges.h"

#include <functional>
#include <queue>
#include <tuple>

namespace tessera::models {
namespace {

constexpr int32_t kNoSymbol = -1;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t previous, next;  // kNoSymbol at the ends
  bool joined = false;     // has been merged into the previous symbol
};

struct Candidate {
  int32_t rank, left, joined_id;
  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

bool PairMerges::Add(int32_t left, int32_t right, int32_t rank, int32_t joined_id) {
  return merges_.insert_or_assign(PairKey(left, right), Merge{rank, joined_id}).second;
}

const PairMerges::Merge* PairMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void PairMerges::Join(std::vector<Piece>& pieces) const {
  const auto size = static_cast<int32_t>(pieces.size());
  std::vector<Symbol> symbols(pieces.size());
  for (int32_t i = 0; i < size; ++i) symbols[i] = {.previous = i - 1, .next = i + 1 == size ? kNoSymbol : i + 1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t left) {
    const Merge* const merge = Find(pieces[left].id, pieces[symbols[left].next].id);
    if (merge != nullptr) queue.push({.rank = merge->rank, .left = left, .joined_id = merge->joined_id});
  };
  for (int32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[candidate.left];
    if (left.joined || left.next == kNoSymbol) continue;
    Symbol& right = symbols[left.next];
    // One of the two may have changed since. As in the reference, the candidate is valid if the pair still has the same
    // result.
    const Merge* const merge = Find(pieces[candidate.left].id, pieces[left.next].id);
    if (merge == nullptr || merge->joined_id != candidate.joined_id) continue;
    pieces[candidate.left].id = candidate.joined_id;
    left.next = right.next;
    right.joined = true;
    if (right.next != kNoSymbol) symbols[right.next].previous = candidate.left;
    if (left.previous != kNoSymbol) offer(left.previous);
    if (left.next != kNoSymbol) offer(candidate.left);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < size; ++i) {
    if (!symbols[i].joined) pieces[kept++] = pieces[i];
  }
  pieces.resize(kept);
}

}  // namespace tessera::models
