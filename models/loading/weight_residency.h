// WeightResidency controls where a transformer's weights are between uses. If the device cannot hold all of them at
// once, a part that is stored on other ranks or in the host's memory is brought to the device before it runs, in the
// forward or backward pass, and released afterwards.
//
// A part is a block, by its index, or kFrame: the parameters outside all blocks (Param::block), which are those of the
// embedders and of the head. A pass over the model holds the frame from its first use to its last, and brings the
// blocks in order and, for gradients, once more in reverse order, so an implementation may prefetch the next one.
#pragma once

#include "models/loading/param_table.h"

namespace tessera::models {

// Used by the compute thread. Its device work is ordered on that thread's current stream.
class WeightResidency {
 public:
  static constexpr int kFrame = static_cast<int>(Param::kNoBlock);

  virtual ~WeightResidency() = default;

  // From Bring until Release of the same part, the storages of its parameters hold its weights on the model's device.
  // Calls nest: a part is released after as many calls of Release as of Bring. Tensors that share these storages are
  // valid only in that time too: a tensor that autograd saved must be read between a Bring and its Release.
  //
  // If ranks hold weights for one another, all of them must bring the same parts in the same order.
  virtual void Bring(int part) = 0;
  virtual void Release(int part) = 0;

  // Whether a block must be brought also for Transformer::Modulate. If not, the parameters that compute its modulations
  // are always on the device.
  virtual bool holds_modulations() const { return true; }
};

// Keeps a part brought during its lifetime. Without a residency the weights are always on the device, and it does
// nothing.
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
