// A Communicator is one rank's end of a group of ranks that exchange tensors.
//
// Not thread-safe: one thread per rank issues the calls. Every rank issues the same collectives in the same order.
// Exchange, Send, Recv and Shift concern only the two ranks of each transfer, which must agree on the order of the
// transfers between them. Both sides know the shapes; shapes are never negotiated. `rows` gives the number of rows of
// each rank along a dimension; numbers may differ and be zero. Calls are not recorded by autograd:
// parallel/functional.h has differentiable collectives.
//
// A call is ordered on the caller's current stream of the tensors' device, like any other work there: work issued on
// that stream afterwards sees its result. The host sees the result only after it has waited for the stream. An error
// may be thrown only then, or by a later call; it contains the number of the failed call. A communicator of host memory
// returns once the result is available.
//
// An axis of size 1 has a SingleRank communicator, never a null pointer, so that model code needs no special case.
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

// Thrown if a call cannot be completed. The group cannot be used afterwards: every later call on it throws as well.
class CommError : public std::runtime_error {
 public:
  struct Details {
    int rank = -1;      // rank that threw, in the world
    std::string group;  // name of the group; may be empty
    std::string call;   // "AllGather"
    int64_t sequence =
        0;             // of this call among this rank's collectives, or its point-to-point calls, on the group; from 1
    int culprit = -1;  // rank that caused it, in the world; -1: unknown
    std::string reason;
    bool relayed = false;  // detected by another rank or a third party, which poisoned the group
  };
  explicit CommError(Details details);
  const Details& details() const { return details_; }

 private:
  Details details_;
};

// The calls of one kind that a rank has made.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;  // logical bytes from this rank to other ranks; parts for itself excluded
  bool operator==(const CommCount&) const = default;
};

// One piece of an exchange: contiguous memory that this rank sends to another rank, or that another rank fills.
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

  // Returns whether calls can be captured together with the surrounding work and replayed (a CUDA graph). The same on
  // all ranks.
  virtual bool capturable() const { return false; }

  // The calls that an implementation provides. All tensors are contiguous and in buffers that the caller owns and may
  // reuse.

  // out = the sum of `in` over the ranks. Both have one shape; `out` is `in` or does not overlap it. The result is
  // bit-equal on all ranks, and the same in every run of a group with that dtype and shape. Counted as reduce-scatter
  // and all-gather of the elements, distributed as by EvenRows.
  void Sum(const at::Tensor& in, const at::Tensor& out);

  // in [sum of rows, …] → out [rows[rank()], …]: this rank's rows of the sum, with the guarantees of Sum.
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows);

  // in [n, …] of each rank → out [size · n, …], the rows in rank order. Counted as an AllGather.
  void Gather(const at::Tensor& in, const at::Tensor& out);

  // Replaces `tensor` with that of `root`.
  void Broadcast(const at::Tensor& tensor, int root);

  // Executes all transfers at once, so that ranks that send to each other in one exchange cannot block one another.
  // Transfers from one rank to another are matched in the order in which both list them. May return before a receiver
  // has called it, and may wait until the receiver has.
  void Exchange(std::span<const Transfer> transfers);

  // The two halves of Exchange, with computation between them. Pieces must not be accessed until Finish has returned,
  // and no other call on this communicator may be made in between.
  void Start(std::span<const Transfer> transfers);
  void Finish();

  // Returns once every rank has called it.
  void Barrier();

  // Composed from the calls above. Tensors may be strided: non-contiguous ones are copied.

  // Concatenates the ranks' parts along `dim`; `local` has rows[rank()] rows there.
  at::Tensor AllGather(const at::Tensor& local, at::IntArrayRef rows, int64_t dim = 0);

  // Returns this rank's rows, along `dim`, of the sum over the ranks.
  at::Tensor ReduceScatterSum(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim = 0);

  // send[r] is sent to rank r, which receives it as receive[rank()]. The second form allocates the tensors it returns.
  void AllToAll(at::TensorList send, at::TensorList receive);
  std::vector<at::Tensor> AllToAll(at::TensorList send, const std::vector<std::vector<int64_t>>& receive_shapes);

  void Send(const at::Tensor& tensor, int to);
  void Recv(const at::Tensor& tensor, int from);

  // Send and Recv at once, so that ranks that shift in a circle cannot block one another.
  void Shift(const at::Tensor& send, int to, const at::Tensor& receive, int from);

  const CommCount& count(Collective collective) const { return counts_[static_cast<int>(collective)]; }

 protected:
  // The call that an exchange belongs to. For a collective, these values must be equal on all ranks.
  struct Call {
    Collective kind = Collective::kExchange;
    at::ScalarType dtype = at::kByte;
    std::vector<int64_t> sizes = {};  // of the result; empty if they differ between ranks
    std::vector<int64_t> rows = {};
  };

 private:
  // The arguments are checked and contiguous, and `size()` is at least 2. No gradient is recorded. By default an even
  // gather is an exchange of its parts.
  virtual void DoSum(const at::Tensor& in, const at::Tensor& out);
  virtual void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows);
  virtual void DoGather(const Call& call, const at::Tensor& in, const at::Tensor& out);
  virtual void DoBroadcast(const at::Tensor& tensor, int root);
  virtual void DoStart(const Call& call, std::span<const Transfer> transfers);
  virtual void DoFinish() {}
  virtual void DoBarrier();

  // Sends send[r] to rank r and receives receive[r] from it; copies this rank's own part during the exchange.
  void ExchangeParts(const Call& call, at::TensorList send, at::TensorList receive);

  void Count(Collective collective, int64_t bytes);
  void CheckTransfers(std::span<const Transfer> transfers) const;
  [[noreturn]] void Unsupported(Collective collective) const;

  std::array<CommCount, kCollectives> counts_;
  bool started_ = false;
};

// A group of one rank: every collective is the identity.
class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool capturable() const override { return true; }
};

// Returns the ranks' parts of `whole` as views.
std::vector<at::Tensor> RankParts(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim);

// Distributes `total` rows over `ranks` as evenly as possible, the longer shares first.
std::vector<int64_t> EvenRows(int64_t total, int ranks);

}  // namespace tessera::parallel
