#include "parallel/communicator.h"

#include <c10/util/irange.h>

#include <utility>

#include "base/planted.h"

namespace tessera::parallel {
namespace {

int64_t Bytes(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

void CheckSummable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
      return;
    default:
      TORCH_CHECK(false, "no sum over ranks of ", tensor.scalar_type(),
                  "; of Double, Float, Half, BFloat16, Long only");
  }
}

int64_t Total(at::IntArrayRef rows) {
  int64_t total = 0;
  for (const int64_t count : rows) {
    TORCH_CHECK(count >= 0, "negative number of rows in ", rows);
    total += count;
  }
  return total;
}

void CheckRank(int rank, int size) { TORCH_CHECK(rank >= 0 && rank < size, "no rank ", rank, " in a group of ", size); }

std::string Text(const CommError::Details& details) {
  std::string text =
      "rank " + std::to_string(details.rank) + ", " + details.call + " " + std::to_string(details.sequence);
  if (!details.group.empty()) text += " of group " + details.group;
  return text + ": " + details.reason;
}

}  // namespace

CommError::CommError(Details details) : std::runtime_error(Text(details)), details_(std::move(details)) {}

std::vector<int64_t> EvenRows(int64_t total, int ranks) {
  std::vector<int64_t> rows(ranks, total / ranks);
  for (const int64_t r : c10::irange(total % ranks)) ++rows[r];
  return rows;
}

std::vector<at::Tensor> RankParts(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    parts.push_back(whole.narrow(dim, begin, count));
    begin += count;
  }
  return parts;
}

void Communicator::Count(Collective collective, int64_t bytes) {
  TORCH_CHECK(!shifting_, Name(collective), " between StartShift and FinishShift");
  CommCount& count = counts_[static_cast<int>(collective)];
  ++count.calls;
  count.bytes += bytes;
}

void Communicator::AllReduceSum(at::Tensor& tensor) {
  CheckSummable(tensor);
  const int64_t own = EvenRows(tensor.numel(), size())[rank()];
  Count(Collective::kAllReduceSum, (tensor.numel() - own + own * (size() - 1)) * tensor.element_size());
  if (size() > 1) DoAllReduceSum(tensor);
}

at::Tensor Communicator::AllGather(const at::Tensor& local, at::IntArrayRef rows, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, local.dim());
  TORCH_CHECK(static_cast<int>(rows.size()) == size() && rows[rank()] == local.size(dim), "rank ", rank(), " of ",
              size(), " gathers dimension ", dim, " of ", local.sizes(), " by rows ", rows);
  const int64_t total = Total(rows);
  Count(Collective::kAllGather, Bytes(local) * (size() - 1));
  if (size() == 1) return local;
  std::vector<int64_t> shape = local.sizes().vec();
  shape[dim] = total;
  at::Tensor whole = at::empty(shape, local.options().requires_grad(false));
  DoAllGather(local, whole, rows, dim);
  if (base::Planted("uneven_last_shard_dropped") && rows.back() != rows.front())
    RankParts(whole, rows, dim).back().zero_();
  return whole;
}

at::Tensor Communicator::ReduceScatterSum(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim) {
  CheckSummable(whole);
  dim = at::maybe_wrap_dim(dim, whole.dim());
  TORCH_CHECK(static_cast<int>(rows.size()) == size() && Total(rows) == whole.size(dim), "rank ", rank(), " of ",
              size(), " scatters dimension ", dim, " of ", whole.sizes(), " by rows ", rows);
  std::vector<int64_t> shape = whole.sizes().vec();
  shape[dim] = rows[rank()];
  at::Tensor local = at::empty(shape, whole.options().requires_grad(false));
  Count(Collective::kReduceScatterSum, Bytes(whole) - Bytes(local));
  if (size() == 1) return whole;
  DoReduceScatterSum(whole, local, rows, dim);
  return local;
}

void Communicator::AllToAll(at::TensorList send, at::TensorList receive) {
  TORCH_CHECK(static_cast<int>(send.size()) == size() && static_cast<int>(receive.size()) == size(),
              "all-to-all of a group of ", size(), " was given ", send.size(), " tensors to send and ", receive.size(),
              " to receive");
  TORCH_CHECK(send[rank()].sizes() == receive[rank()].sizes(), "a rank's part for itself is sent as ",
              send[rank()].sizes(), " and received as ", receive[rank()].sizes());
  int64_t bytes = 0;
  for (const int r : c10::irange(size())) {
    TORCH_CHECK(send[r].scalar_type() == send[0].scalar_type() && receive[r].scalar_type() == send[0].scalar_type(),
                "all-to-all of several dtypes");
    if (r != rank()) bytes += Bytes(send[r]);
  }
  Count(Collective::kAllToAll, bytes);
  if (size() > 1) {
    DoAllToAll(send, receive);
  } else if (!receive[0].is_same(send[0])) {
    receive[0].copy_(send[0]);
  }
}

std::vector<at::Tensor> Communicator::AllToAll(at::TensorList send,
                                               const std::vector<std::vector<int64_t>>& receive_shapes) {
  TORCH_CHECK(!send.empty(), "all-to-all of no tensors");
  std::vector<at::Tensor> receive;
  for (const std::vector<int64_t>& shape : receive_shapes)
    receive.push_back(at::empty(shape, send[0].options().requires_grad(false)));
  AllToAll(send, receive);
  return receive;
}

void Communicator::Broadcast(at::Tensor& tensor, int root) {
  CheckRank(root, size());
  Count(Collective::kBroadcast, rank() == root ? Bytes(tensor) * (size() - 1) : 0);
  if (size() > 1) DoBroadcast(tensor, root);
}

void Communicator::Send(const at::Tensor& tensor, int to) {
  CheckRank(to, size());
  TORCH_CHECK(to != rank(), "rank ", to, " sends to itself");
  Count(Collective::kSend, Bytes(tensor));
  DoSend(tensor, to);
}

void Communicator::Recv(at::Tensor& tensor, int from) {
  CheckRank(from, size());
  TORCH_CHECK(from != rank(), "rank ", from, " receives from itself");
  Count(Collective::kRecv, 0);
  DoRecv(tensor, from);
}

void Communicator::Shift(const at::Tensor& send, int to, at::Tensor& receive, int from) {
  StartShift(send, to, receive, from);
  FinishShift();
}

void Communicator::StartShift(const at::Tensor& send, int to, at::Tensor& receive, int from) {
  CheckRank(to, size());
  CheckRank(from, size());
  TORCH_CHECK((to == rank()) == (from == rank()), "a rank that shifts to itself must also receive from itself");
  Count(Collective::kShift, to == rank() ? 0 : Bytes(send));
  shifting_ = true;
  if (to == rank()) {
    receive.copy_(send);
  } else {
    DoStartShift(send, to, receive, from);
  }
}

void Communicator::FinishShift() {
  TORCH_CHECK(shifting_, "FinishShift without StartShift");
  shifting_ = false;
  DoFinishShift();
}

void Communicator::Barrier() {
  Count(Collective::kBarrier, 0);
  if (size() > 1) DoBarrier();
}

void Communicator::Unsupported(Collective collective) const {
  throw CommError({.rank = rank(),
                   .call = std::string(Name(collective)),
                   .reason = "this communicator has no " + std::string(Name(collective))});
}

void Communicator::DoAllReduceSum(at::Tensor&) { Unsupported(Collective::kAllReduceSum); }
void Communicator::DoAllGather(const at::Tensor&, at::Tensor&, at::IntArrayRef, int64_t) {
  Unsupported(Collective::kAllGather);
}
void Communicator::DoReduceScatterSum(const at::Tensor&, at::Tensor&, at::IntArrayRef, int64_t) {
  Unsupported(Collective::kReduceScatterSum);
}
void Communicator::DoAllToAll(at::TensorList, at::TensorList) { Unsupported(Collective::kAllToAll); }
void Communicator::DoBroadcast(at::Tensor&, int) { Unsupported(Collective::kBroadcast); }
void Communicator::DoSend(const at::Tensor&, int) { Unsupported(Collective::kSend); }
void Communicator::DoRecv(at::Tensor&, int) { Unsupported(Collective::kRecv); }
void Communicator::DoStartShift(const at::Tensor&, int, at::Tensor&, int) { Unsupported(Collective::kShift); }
void Communicator::DoFinishShift() {}
void Communicator::DoBarrier() { Unsupported(Collective::kBarrier); }

}  // namespace tessera::parallel
