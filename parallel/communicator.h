// A group of ranks that exchange tensors. One object is one rank's end of the group.
//
// Not thread-safe: one thread per rank issues the calls. Every rank issues the same collectives in the same order;
// Exchange, Send, Recv and Shift concern only the two ranks of each transfer, which must agree on the order of what
// passes between them. Shapes are known to both sides and never negotiated. `rows` are rows per rank along a dimension;
// they may be uneven and zero. Calls take no part in autograd: parallel/functional.h has what has a gradient.
//
// A call is ordered on the caller's current stream of the tensors' device, like any other work there: what is issued
// behind it on that stream sees its result. The host sees it only once it has waited for the stream, and an error may
// come only then, or from a later call; it names the call by its number. A communicator of host memory returns when the
// result is there.
//
// An axis of size 1 has a SingleRank communicator, never a null, so model code asks nothing about ranks.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
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

// One piece of an exchange: contiguous memory that this rank sends to another one, or that another one fills.
struct Transfer {
  static Transfer Send(at::Tensor piece, int to) { return {.piece = std::move(piece), .peer = to, .receives = false}; }
  static Transfer Receive(at::Tensor piece, int from) {
    return {.piece = std::move(piece), .peer = from, .receives = true};
  }

  at::Tensor piece;
  int peer;
  bool receives;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether calls can be captured with the work around them and played back (a CUDA graph). The same on all ranks.
  virtual bool capturable() const { return false; }

  // The calls that an implementation makes. All tensors are contiguous, in buffers that the caller owns and may use
  // again.

  // out = the sum over the ranks of `in`, of one shape; `out` is `in` or does not overlap it. Bit-equal on all ranks,
  // and the same in every run of a group with that dtype and shape. Counted as reduce-scatter and all-gather of its
  // elements, dealt out as by EvenRows.
  void Sum(const at::Tensor& in, const at::Tensor& out);

  // in [sum of rows, …] → out [rows[rank()], …]: this rank's rows of the sum, which is as Sum has it.
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows);

  // in [n, …] of each rank → out [size · n, …], one rank's rows after another's. Counted as an AllGather.
  void Gather(const at::Tensor& in, const at::Tensor& out);

  // Replaces `tensor` by that of `root`.
  void Broadcast(const at::Tensor& tensor, int root);

  // All transfers at once, so that ranks which send to each other in one exchange each cannot block one another. What
  // passes from one rank to another is matched in the order in which both list it. May return before a receiver has
  // called, and may wait until it has.
  void Exchange(std::span<const Transfer> transfers);

  // Exchange in two halves with computation between them. Pieces must stay untouched until Finish; no other call on
  // this communicator may come between.
  void Start(std::span<const Transfer> transfers);
  void Finish();

  // Returns when every rank has called it.
  void Barrier();

  // What is made of these calls. Tensors may be strided: what is not contiguous is copied.

  // The ranks' parts one after the other along `dim`; `local` has rows[rank()] rows there.
  at::Tensor AllGather(const at::Tensor& local, at::IntArrayRef rows, int64_t dim = 0);

  // This rank's rows along `dim` of the sum over the ranks.
  at::Tensor ReduceScatterSum(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim = 0);

  // send[r] goes to rank r and becomes its receive[rank()]. The second form makes the tensors it returns.
  void AllToAll(at::TensorList send, at::TensorList receive);
  std::vector<at::Tensor> AllToAll(at::TensorList send, const std::vector<std::vector<int64_t>>& receive_shapes);

  void Send(const at::Tensor& tensor, int to);
  void Recv(const at::Tensor& tensor, int from);

  // Send and Recv at once: ranks that shift in a circle cannot block one another.
  void Shift(const at::Tensor& send, int to, const at::Tensor& receive, int from);

  const CommCount& count(Collective collective) const { return counts_[static_cast<int>(collective)]; }
  void ResetCounts() { counts_ = {}; }

 protected:
  // What an exchange is part of, and, of a collective, what all ranks must give alike.
  struct Call {
    Collective kind = Collective::kExchange;
    at::ScalarType dtype = at::kByte;
    std::vector<int64_t> sizes = {};  // of the result; empty: these differ between ranks
    std::vector<int64_t> rows = {};
  };

 private:
  // The arguments are checked, contiguous, and `size()` is at least 2. No gradient is recorded. An even gather is an
  // exchange of its parts where an implementation has nothing better.
  virtual void DoSum(const at::Tensor& in, const at::Tensor& out);
  virtual void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows);
  virtual void DoGather(const Call& call, const at::Tensor& in, const at::Tensor& out);
  virtual void DoBroadcast(const at::Tensor& tensor, int root);
  virtual void DoStart(const Call& call, std::span<const Transfer> transfers);
  virtual void DoFinish() {}
  virtual void DoBarrier();

  // send[r] goes to rank r and receive[r] comes from there; the own part is copied meanwhile.
  void ExchangeParts(const Call& call, at::TensorList send, at::TensorList receive);

  void Count(Collective collective, int64_t bytes);
  void CheckTransfers(std::span<const Transfer> transfers) const;
  [[noreturn]] void Unsupported(Collective collective) const;

  std::array<CommCount, kCollectives> counts_;
  bool started_ = false;
};

// The group of one: every collective is the identity.
class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool capturable() const override { return true; }
};

// The ranks' parts of `whole`, as views.
std::vector<at::Tensor> RankParts(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim);

// `total` rows dealt out over `ranks` as evenly as can be, the longer shares first.
std::vector<int64_t> EvenRows(int64_t total, int ranks);

}  // namespace tessera::parallel
