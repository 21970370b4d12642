// A group of ranks that exchange tensors. One object is one rank's end of the group.
//
// Not thread-safe: one thread per rank issues the calls, and every rank issues the same calls in the same order.
// An axis of size 1 has a SingleRank communicator, never a null, so model code asks nothing about ranks.
#pragma once

#include <ATen/ATen.h>

namespace tessera {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Replaces `tensor` on every rank by the sum over the ranks, taken in rank order.
  virtual void AllReduceSum(at::Tensor& tensor) = 0;
};

// The group of one: every collective is the identity.
class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void AllReduceSum(at::Tensor&) override {}
};

}  // namespace tessera
