// PipeFusion's keys and values: one row for each token that this rank holds after the head exchange, by global index.
// A pass over some patches puts its own rows in their places and reads all of them, those of the other patches as the
// step before left them; text rows come with patch 0. Rows have the same places in a pass over the whole image.
//
// An epoch is one stream of steps of the same rows of a batch. Rows are marked with the epoch that wrote them, and
// reading those of another is an error: nothing of one request can reach another.
//
// Belongs to the group of rows of one rank; used by one thread.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "parallel/attention/policies.h"

namespace tessera::parallel {

class StaleStore final : public KvStore {
 public:
  // A new epoch, of tokens laid out like this. Memory of the last one is used again where its shapes fit.
  void Begin(int64_t epoch, const TokenLayout& tokens, int ring_rank);

  // What the next calls of Renew are about.
  void BeginPass(PatchRange patches) { pass_ = patches; }

  // Throws c10::Error where the store lacks rows of this epoch: a patch that no pass has gone over yet.
  Qkv Renew(int layer, const Qkv& qkv) override;

 private:
  struct Layer {
    at::Tensor keys_values;       // [2, b, tokens, h, d]; text first, then image, by global index
    std::vector<int64_t> epochs;  // that wrote them, by patch
  };

  std::optional<TokenLayout> tokens_;
  int ring_rank_ = 0;
  int64_t epoch_ = -1;
  PatchRange pass_;
  std::map<int, Layer> layers_;
};

}  // namespace tessera::parallel
