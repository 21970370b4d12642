#include "parallel/communicator.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "base/macros/planted.h"

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
      TORCH_CHECK(false, "cannot sum ", tensor.scalar_type(),
                  " over ranks; valid types are Double, Float, Half, BFloat16 and Long");
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

bool IsEven(at::IntArrayRef rows) {
  return std::ranges::all_of(rows, [&](int64_t count) { return count == rows[0]; });
}

void CheckContiguous(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              " is not contiguous");
}

// Provides contiguous memory for receiving views. Land copies it to the views that are not contiguous.
class Landings {
 public:
  at::Tensor For(const at::Tensor& view) {
    if (view.is_contiguous()) return view;
    buffers_.emplace_back(at::empty(view.sizes(), view.options().requires_grad(false)), view);
    return buffers_.back().first;
  }
  void Land() const {
    for (const auto& [buffer, view] : buffers_) view.copy_(buffer);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

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
  TORCH_CHECK(!started_, Name(collective), " between Start and Finish");
  CommCount& count = counts_[static_cast<int>(collective)];
  ++count.calls;
  count.bytes += bytes;
}

void Communicator::CheckTransfers(std::span<const Transfer> transfers) const {
  for (const Transfer& transfer : transfers) {
    CheckRank(transfer.peer, size());
    TORCH_CHECK(transfer.peer != rank(), "rank ", rank(), " exchanges with itself");
    CheckContiguous(transfer.piece);
  }
}

void Communicator::Sum(const at::Tensor& in, const at::Tensor& out) {
  CheckSummable(in);
  CheckContiguous(in);
  CheckContiguous(out);
  TORCH_CHECK(in.sizes() == out.sizes() && in.scalar_type() == out.scalar_type(), "the sum of ", in.sizes(),
              " does not go into ", out.sizes());
  const int64_t own = EvenRows(in.numel(), size())[rank()];
  Count(Collective::kSum, (in.numel() - own + own * (size() - 1)) * in.element_size());
  if (size() > 1) {
    const at::NoGradGuard no_grad;
    DoSum(in, out);
  } else if (!out.is_same(in)) {
    out.copy_(in);
  }
}

void Communicator::ReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows) {
  CheckSummable(in);
  CheckContiguous(in);
  CheckContiguous(out);
  TORCH_CHECK(static_cast<int>(rows.size()) == size() && Total(rows) == in.size(0) && out.size(0) == rows[rank()] &&
                  out.scalar_type() == in.scalar_type(),
              "rank ", rank(), " of ", size(), " scatters ", in.sizes(), " into ", out.sizes(), " by rows ", rows);
  Count(Collective::kReduceScatter, Bytes(in) - Bytes(out));
  if (size() > 1) {
    const at::NoGradGuard no_grad;
    DoReduceScatter(in, out, rows);
  } else if (!out.is_same(in)) {
    out.copy_(in);
  }
}

void Communicator::Gather(const at::Tensor& in, const at::Tensor& out) {
  CheckContiguous(in);
  CheckContiguous(out);
  TORCH_CHECK(out.numel() == in.numel() * size() && out.scalar_type() == in.scalar_type(), size(), " times ",
              in.sizes(), " is not ", out.sizes());
  Count(Collective::kAllGather, Bytes(in) * (size() - 1));
  if (size() > 1) {
    const at::NoGradGuard no_grad;
    const std::vector<int64_t> rows(static_cast<size_t>(size()), in.dim() > 0 ? in.size(0) : 1);
    DoGather({.kind = Collective::kAllGather, .dtype = in.scalar_type(), .sizes = out.sizes().vec(), .rows = rows}, in,
             out);
  } else if (!out.is_same(in)) {
    out.copy_(in.view(out.sizes()));
  }
}

void Communicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckRank(root, size());
  CheckContiguous(tensor);
  Count(Collective::kBroadcast, rank() == root ? Bytes(tensor) * (size() - 1) : 0);
  if (size() == 1) return;
  const at::NoGradGuard no_grad;
  DoBroadcast(tensor, root);
}

void Communicator::Exchange(std::span<const Transfer> transfers) {
  Start(transfers);
  Finish();
}

void Communicator::Start(std::span<const Transfer> transfers) {
  CheckTransfers(transfers);
  int64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.receives ? 0 : Bytes(transfer.piece);
  Count(Collective::kExchange, bytes);
  started_ = true;
  const at::NoGradGuard no_grad;
  if (!transfers.empty()) DoStart({}, transfers);
}

void Communicator::Finish() {
  TORCH_CHECK(started_, "Finish without Start");
  started_ = false;
  const at::NoGradGuard no_grad;
  DoFinish();
}

void Communicator::Barrier() {
  Count(Collective::kBarrier, 0);
  if (size() > 1) DoBarrier();
}

at::Tensor Communicator::AllGather(const at::Tensor& local, at::IntArrayRef rows, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, local.dim());
  TORCH_CHECK(static_cast<int>(rows.size()) == size() && rows[rank()] == local.size(dim), "rank ", rank(), " of ",
              size(), " gathers dimension ", dim, " of ", local.sizes(), " by rows ", rows);
  std::vector<int64_t> shape = local.sizes().vec();
  shape[dim] = Total(rows);
  Count(Collective::kAllGather, Bytes(local) * (size() - 1));
  if (size() == 1) return local;
  const at::NoGradGuard no_grad;
  const at::Tensor whole = at::empty(shape, local.options().requires_grad(false));
  const std::vector<at::Tensor> parts = RankParts(whole, rows, dim);
  const Call call{.kind = Collective::kAllGather, .dtype = local.scalar_type(), .sizes = shape, .rows = rows.vec()};
  if (IsEven(rows) && parts[0].is_contiguous()) {
    DoGather(call, local.contiguous(), whole);
  } else {
    ExchangeParts(call, std::vector<at::Tensor>(static_cast<size_t>(size()), local.contiguous()), parts);
  }
  if (base::Planted("uneven_last_shard_dropped") && rows.back() != rows.front()) parts.back().zero_();
  return whole;
}

at::Tensor Communicator::ReduceScatterSum(const at::Tensor& whole, at::IntArrayRef rows, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, whole.dim());
  TORCH_CHECK(static_cast<int>(rows.size()) == size() && Total(rows) == whole.size(dim), "rank ", rank(), " of ",
              size(), " scatters dimension ", dim, " of ", whole.sizes(), " by rows ", rows);
  const at::NoGradGuard no_grad;
  const at::Tensor in = whole.movedim(dim, 0).contiguous();
  std::vector<int64_t> shape = in.sizes().vec();
  shape[0] = rows[rank()];
  const at::Tensor out = at::empty(shape, in.options().requires_grad(false));
  ReduceScatter(in, size() > 1 ? out : in, rows);
  return size() > 1 ? out.movedim(0, dim).contiguous() : whole;
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
  const at::NoGradGuard no_grad;
  ExchangeParts({.kind = Collective::kAllToAll, .dtype = send[0].scalar_type()}, send, receive);
}

void Communicator::ExchangeParts(const Call& call, at::TensorList send, at::TensorList receive) {
  Landings landings;
  std::vector<Transfer> transfers;
  for (const int r : c10::irange(size())) {
    if (r == rank()) continue;
    transfers.push_back(Transfer::Send(send[r].contiguous(), r));
    transfers.push_back(Transfer::Receive(landings.For(receive[r]), r));
  }
  if (size() > 1) DoStart(call, transfers);
  if (!receive[rank()].is_same(send[rank()])) receive[rank()].copy_(send[rank()]);
  if (size() > 1) DoFinish();
  landings.Land();
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

void Communicator::Send(const at::Tensor& tensor, int to) {
  const at::NoGradGuard no_grad;
  const Transfer transfer = Transfer::Send(tensor.contiguous(), to);
  CheckTransfers({&transfer, 1});
  Count(Collective::kSend, Bytes(tensor));
  DoStart({.kind = Collective::kSend}, {&transfer, 1});
  DoFinish();
}

void Communicator::Recv(const at::Tensor& tensor, int from) {
  const at::NoGradGuard no_grad;
  Landings landings;
  const Transfer transfer = Transfer::Receive(landings.For(tensor), from);
  CheckTransfers({&transfer, 1});
  Count(Collective::kRecv, 0);
  DoStart({.kind = Collective::kRecv}, {&transfer, 1});
  DoFinish();
  landings.Land();
}

void Communicator::Shift(const at::Tensor& send, int to, const at::Tensor& receive, int from) {
  CheckRank(to, size());
  CheckRank(from, size());
  TORCH_CHECK((to == rank()) == (from == rank()), "a rank that shifts to itself must also receive from itself");
  Count(Collective::kShift, to == rank() ? 0 : Bytes(send));
  const at::NoGradGuard no_grad;
  if (to == rank()) {
    receive.copy_(send);
    return;
  }
  Landings landings;
  const std::array<Transfer, 2> transfers = {Transfer::Send(send.contiguous(), to),
                                             Transfer::Receive(landings.For(receive), from)};
  DoStart({.kind = Collective::kShift}, transfers);
  DoFinish();
  landings.Land();
}

void Communicator::Unsupported(Collective collective) const {
  throw CommError({.rank = rank(),
                   .call = std::string(Name(collective)),
                   .reason = "this communicator has no " + std::string(Name(collective))});
}

void Communicator::DoSum(const at::Tensor&, const at::Tensor&) { Unsupported(Collective::kSum); }
void Communicator::DoReduceScatter(const at::Tensor&, const at::Tensor&, at::IntArrayRef) {
  Unsupported(Collective::kReduceScatter);
}
void Communicator::DoGather(const Call& call, const at::Tensor& in, const at::Tensor& out) {
  const std::vector<int64_t> rows(static_cast<size_t>(size()), in.numel());
  ExchangeParts(call, std::vector<at::Tensor>(static_cast<size_t>(size()), in.view(-1)),
                RankParts(out.view(-1), rows, 0));
}
void Communicator::DoBroadcast(const at::Tensor&, int) { Unsupported(Collective::kBroadcast); }
void Communicator::DoStart(const Call& call, std::span<const Transfer>) { Unsupported(call.kind); }
void Communicator::DoBarrier() { Unsupported(Collective::kBarrier); }

}  // namespace tessera::parallel
