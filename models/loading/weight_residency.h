// Where a transformer's weights are between their uses. Where the device cannot hold all of them at once, what other
// ranks or the host's memory have of a part is brought before it runs, forwards or backwards, and released behind it.
//
// A part is a block, by its index, or kFrame: the parameters that are in no block (Param::block), which are those of
// the embedders and of the head. A pass over the model holds the frame from its first use to its last, and brings the
// blocks in their order and, for gradients, once more in the reverse order: an implementation may bring the next one
// ahead.
#pragma once

#include "models/loading/param_table.h"

namespace tessera::models {

// Used by the thread that computes. What it does is ordered on that thread's current stream.
class WeightResidency {
 public:
  static constexpr int kFrame = static_cast<int>(Param::kNoBlock);

  virtual ~WeightResidency() = default;

  // From here to Release of the same part its parameters' storages hold its weights, on the model's device. Calls nest:
  // a part is released when Release has been called as often as Bring. What shares the storages shares their fate: a
  // tensor that autograd saved is to be read between a Bring and its Release.
  //
  // Where ranks hold the weights for one another, all of them bring the same parts in the same order.
  virtual void Bring(int part) = 0;
  virtual void Release(int part) = 0;
};

// A part that is brought as long as this lives; without a residency the weights are always there.
class BroughtPart final {
 public:
  BroughtPart(WeightResidency* residency, int part) : residency_(residency), part_(part) {
    if (residency_ != nullptr) residency_->Bring(part_);
  }
  ~BroughtPart() {
    if (residency_ != nullptr) residency_->Release(part_);
  }
  BroughtPart(const BroughtPart&) = delete;
  BroughtPart& operator=(const BroughtPart&) = delete;

 private:
  WeightResidency* const residency_;
  const int part_;
};

}  // namespace tessera::models
