// A group of ranks that exchange tensors. One object is one rank's end of the group.
//
// Not thread-safe: one thread per rank issues the calls. Every rank issues the same collectives in the same order;
// Send, Recv and Shift concern only the two ranks of a pair, which must agree on the order of what passes between them.
// Shapes are known to both sides and never negotiated. `rows` are rows per rank along a dimension; they may be uneven
// and zero. Tensors may be strided views. Calls take no part in autograd: parallel/functional.h has what has a
// gradient.
//
// An axis of size 1 has a SingleRank communicator, never a null, so model code asks nothing about ranks.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/collective.h"

namespace tessera::parallel {

// Why a call could not be finished. The group is of no use afterwards: every later call on it throws as well.
class CommError : public std::runtime_error {
 public:
  struct Details {
    int rank = -1;      // that threw, as in the whole world of ranks
    std::string group;  // name of the group; may be empty
    std::string call;   // "AllGather"
    int64_t sequence =
        0;             // of this call among this rank's collectives, or its point-to-point calls, on the group; from 1
    int culprit = -1;  // rank that caused it, as in the whole world; -1: unknown
    std::string reason;
    bool relayed = false;  // noticed by another rank or a third party, which poisoned the group
  };
  explicit CommError(Details details);
  const Details& details() const { return details_; }

 private:
  Details details_;
};

// What one rank has done by one kind of call.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;  // logical bytes from this rank to other ranks; own parts excluded
  bool operator==(const CommCount&) const = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Replaces `tensor` on every rank by the sum over the ranks, taken in rank order: bit-equal on all ranks.
  // Counted as reduce-scatter and all-gather of its elements, dealt out as by EvenRows.
  void AllReduceSum(at::Tensor& tensor);

  // The ranks' parts one after the other along `dim`; `local` has rows[rank()] rows there.
  at::Tensor AllGather(const at::Tensor& local, at::IntArrayRef rows, int64_t dim = 0);

  // This rank's rows of the sum over the ranks.
  at::Tensor ReduceScatterSum(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim = 0);

  // send[r] goes to rank r and becomes its receive[rank()]. The second form makes the tensors it returns.
  void AllToAll(at::TensorList send, at::TensorList receive);
  std::vector<at::Tensor> AllToAll(at::TensorList send, const std::vector<std::vector<int64_t>>& receive_shapes);

  // Replaces `tensor` by that of `root`.
  void Broadcast(at::Tensor& tensor, int root);

  // May return before the receiver has called, and may wait until it has.
  void Send(const at::Tensor& tensor, int to);
  void Recv(at::Tensor& tensor, int from);

  // Send and Recv at once: ranks that shift in a circle cannot block one another.
  void Shift(const at::Tensor& send, int to, at::Tensor& receive, int from);

  // Shift in two halves with computation between them. Both tensors must stay alive and untouched until FinishShift; no
  // other call on this communicator may come between.
  void StartShift(const at::Tensor& send, int to, at::Tensor& receive, int from);
  void FinishShift();

  // Returns when every rank has called it.
  void Barrier();

  const CommCount& count(Collective collective) const { return counts_[static_cast<int>(collective)]; }
  void ResetCounts() { counts_ = {}; }

 private:
  // The arguments are checked, `size()` is at least 2, and results are allocated.
  virtual void DoAllReduceSum(at::Tensor& tensor);
  virtual void DoAllGather(const at::Tensor& local, at::Tensor& whole, at::IntArrayRef rows, int64_t dim);
  virtual void DoReduceScatterSum(const at::Tensor& whole, at::Tensor& local, at::IntArrayRef rows, int64_t dim);
  virtual void DoAllToAll(at::TensorList send, at::TensorList receive);
  virtual void DoBroadcast(at::Tensor& tensor, int root);
  virtual void DoSend(const at::Tensor& tensor, int to);
  virtual void DoRecv(at::Tensor& tensor, int from);
  virtual void DoStartShift(const at::Tensor& send, int to, at::Tensor& receive, int from);
  virtual void DoFinishShift();
  virtual void DoBarrier();

  void Count(Collective collective, int64_t bytes);
  [[noreturn]] void Unsupported(Collective collective) const;

  std::array<CommCount, kCollectives> counts_;
  bool shifting_ = false;
};

// The group of one: every collective is the identity.
class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
};

// The ranks' parts of `whole`, as views.
std::vector<at::Tensor> RankParts(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim);

// `total` rows dealt out over `ranks` as evenly as can be, the longer shares first.
std::vector<int64_t> EvenRows(int64_t total, int ranks);

}  // namespace tessera::parallel
