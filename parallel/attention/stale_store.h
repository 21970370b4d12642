// StaleStore holds PipeFusion's keys and values: one row for each token that this rank holds after the head exchange,
// by global index. A pass over some patches writes its own rows and reads all rows; those of the other patches are from
// the previous step. Text rows belong to patch 0. A pass over the whole image uses the same places.
//
// An epoch is one stream of steps of the same rows of a batch. Rows are marked with the epoch that wrote them, and
// reading a row of another epoch is an error, so that no data of one request can reach another.
//
// A rank has one store for each group of a batch's rows. A store is used by one thread.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "parallel/attention/policies.h"

namespace tessera::parallel {

class StaleStore final : public KvStore {
 public:
  // Begins a new epoch with this token layout. Reuses the memory of the previous epoch if the shapes are equal.
  void Begin(int64_t epoch, const TokenLayout& tokens, int ring_rank);

  // Sets the patches that the next calls of Renew compute.
  void BeginPass(PatchRange patches) { pass_ = patches; }

  // Throws c10::Error if the store lacks rows of this epoch, that is, if no pass has computed a patch yet.
  Qkv Renew(int layer, const Qkv& qkv) override;

 private:
  struct Layer {
    at::Tensor keys_values;       // [2, b, tokens, h, d]; text first, then image, by global index
    std::vector<int64_t> epochs;  // the epoch that wrote each patch
  };

  std::optional<TokenLayout> tokens_;
  int ring_rank_ = 0;
  int64_t epoch_ = -1;
  PatchRange pass_;
  std::map<int, Layer> layers_;
};

}  // namespace tessera::parallel
