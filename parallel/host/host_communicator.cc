#include "parallel/host/host_communicator.h"

#include <c10/core/ScalarType.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>

namespace tessera::parallel {
namespace {

// Sums of this size take one exchange of everything instead of two of parts.
constexpr int64_t kDirectSumBytes = 16 << 10;

// Shorter pieces are gathered by LibTorch into a contiguous copy.
constexpr int64_t kShortestRun = 64;

std::string DtypeName(uint8_t dtype) {
  return dtype < static_cast<uint8_t>(at::ScalarType::NumOptions) ? c10::toString(static_cast<at::ScalarType>(dtype))
                                                                  : "unknown";
}

HostCall Describe(Collective kind, const at::Tensor& tensor) {
  HostCall call{.kind = kind, .dtype = static_cast<uint8_t>(tensor.scalar_type())};
  call.dims = std::min<int>(static_cast<int>(tensor.dim()), HostCall::kMaxDims);
  std::copy_n(tensor.sizes().begin(), call.dims, call.sizes.begin());
  return call;
}

StridedBytes BytesOf(const at::Tensor& tensor) {
  return StridedBytes(tensor.data_ptr(), {tensor.sizes().data(), tensor.sizes().size()},
                      {tensor.strides().data(), tensor.strides().size()}, tensor.element_size());
}

bool NeedsStaging(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return true;
  if (tensor.is_contiguous()) return tensor.dim() > StridedBytes::kMaxDims;
  return tensor.dim() > StridedBytes::kMaxDims || BytesOf(tensor).run() < kShortestRun;
}

at::Tensor Flat(const at::Tensor& tensor) { return tensor.cpu().contiguous().view(-1); }

template <typename T, typename Accumulator>
void Add(const std::vector<const std::byte*>& sources, std::byte* result, int64_t bytes) {
  constexpr int64_t kBlock = 512;
  std::array<Accumulator, kBlock> sum;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  T* const to = reinterpret_cast<T*>(result);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < block; ++i) sum[i] = static_cast<Accumulator>(first[i]);
    for (size_t r = 1; r < sources.size(); ++r) {
      const T* from = reinterpret_cast<const T*>(sources[r]) + begin;
      for (int64_t i = 0; i < block; ++i) sum[i] += static_cast<Accumulator>(from[i]);
    }
    for (int64_t i = 0; i < block; ++i) to[begin + i] = static_cast<T>(sum[i]);
  }
}

using AddFunction = void (*)(const std::vector<const std::byte*>&, std::byte*, int64_t);

AddFunction Adder(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Add<double, double>;
    case at::kFloat:
      return Add<float, float>;
    case at::kHalf:
      return Add<at::Half, float>;
    case at::kBFloat16:
      return Add<at::BFloat16, float>;
    case at::kLong:
      return Add<uint64_t, uint64_t>;  // wraps as two's complement does
    default:
      TORCH_CHECK(false, "no sum over ranks of ", dtype);
  }
}

int GroupRank(const HostSegment& segment, int group, int world_rank) {
  const std::vector<int>& ranks = segment.groups().at(group).ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  TORCH_CHECK(found != ranks.end(), "rank ", world_rank, " is not in group ", segment.groups()[group].name);
  return static_cast<int>(found - ranks.begin());
}

}  // namespace

HostCommunicator::HostCommunicator(const std::shared_ptr<HostSegment>& segment, int group, int world_rank,
                                   HostCommunicatorOptions options)
    : endpoint_(segment, group, GroupRank(*segment, group, world_rank),
                {.deadline = options.deadline, .spin = options.spin, .dtype_name = DtypeName}) {}

template <typename Body>
void HostCommunicator::Guarded(Collective kind, Body body) {
  const at::NoGradGuard no_grad;
  try {
    body();
    endpoint_.EndCall();
  } catch (const HostFailure& failure) {
    const bool pair = kind == Collective::kSend || kind == Collective::kRecv || kind == Collective::kShift;
    throw CommError({.rank = endpoint_.WorldRank(rank()),
                     .group = endpoint_.group_name(),
                     .call = std::string(Name(kind)),
                     .sequence = pair ? endpoint_.point_to_point_calls() : endpoint_.collectives(),
                     .culprit = failure.culprit,
                     .reason = failure.reason,
                     .relayed = failure.relayed});
  }
}

void HostCommunicator::Traffic::Add(Collective kind, const at::Tensor& tensor, int to) {
  staged.push_back(NeedsStaging(tensor) ? Flat(tensor) : tensor);
  out.push_back({.to = to, .bytes = BytesOf(staged.back()), .call = Describe(kind, tensor)});
}

void HostCommunicator::Traffic::Expect(Collective kind, const at::Tensor& tensor, int from) {
  at::Tensor into = tensor;
  if (NeedsStaging(tensor)) {
    into = at::empty({tensor.numel()}, tensor.options().device(at::kCPU).requires_grad(false));
    landings.emplace_back(into, tensor);
  }
  in.push_back({.from = from, .bytes = BytesOf(into), .call = Describe(kind, tensor)});
  staged.push_back(into);
}

void HostCommunicator::Traffic::Land() {
  for (auto& [from, to] : landings) to.copy_(from.view(to.sizes()));
}

void HostCommunicator::Sum(Collective kind, Traffic& traffic, const at::Tensor& own, at::Tensor& result) {
  endpoint_.TransferAndSum(traffic.out, {.call = Describe(kind, own),
                                         .bytes = own.numel() * own.element_size(),
                                         .own = static_cast<std::byte*>(own.data_ptr()),
                                         .result = static_cast<std::byte*>(result.data_ptr()),
                                         .add = Adder(own.scalar_type())});
}

void HostCommunicator::DoAllReduceSum(at::Tensor& tensor) {
  constexpr Collective kKind = Collective::kAllReduceSum;
  Guarded(kKind, [&] {
    endpoint_.BeginCollective(Describe(kKind, tensor));
    at::Tensor values = Flat(tensor);
    if (values.numel() * values.element_size() <= kDirectSumBytes) {
      at::Tensor sum = at::empty_like(values);
      Traffic traffic;
      for (const int r : c10::irange(size()))
        if (r != rank()) traffic.Add(kKind, values, r);
      Sum(kKind, traffic, values, sum);
      tensor.copy_(sum.view(tensor.sizes()));
      return;
    }
    std::vector<at::Tensor> parts = RankParts(values, EvenRows(values.numel(), size()), 0);
    Traffic scatter, gather;
    for (const int r : c10::irange(size())) {
      if (r == rank()) continue;
      scatter.Add(kKind, parts[r], r);
      gather.Add(kKind, parts[rank()], r);
      gather.Expect(kKind, parts[r], r);
    }
    Sum(kKind, scatter, parts[rank()], parts[rank()]);
    endpoint_.Transfer(gather.out, gather.in);
    if (values.data_ptr() != tensor.data_ptr()) tensor.copy_(values.view(tensor.sizes()));
  });
}

void HostCommunicator::DoReduceScatterSum(const at::Tensor& whole, at::Tensor& local, at::IntArrayRef rows,
                                          int64_t dim) {
  constexpr Collective kKind = Collective::kReduceScatterSum;
  Guarded(kKind, [&] {
    HostCall call = Describe(kKind, whole);
    call.rows = rows.vec();
    endpoint_.BeginCollective(call);
    const std::vector<at::Tensor> parts = RankParts(whole, rows, dim);
    Traffic traffic;
    for (const int r : c10::irange(size()))
      if (r != rank()) traffic.Add(kKind, parts[r], r);
    const at::Tensor own = parts[rank()].cpu().contiguous();
    at::Tensor sum = local.is_cpu() ? local : at::empty_like(own);
    Sum(kKind, traffic, own, sum);
    if (!local.is_cpu()) local.copy_(sum);
  });
}

void HostCommunicator::DoAllGather(const at::Tensor& local, at::Tensor& whole, at::IntArrayRef rows, int64_t dim) {
  constexpr Collective kKind = Collective::kAllGather;
  Guarded(kKind, [&] {
    HostCall call = Describe(kKind, whole);
    call.rows = rows.vec();
    endpoint_.BeginCollective(call);
    std::vector<at::Tensor> parts = RankParts(whole, rows, dim);
    Traffic traffic;
    for (const int r : c10::irange(size())) {
      if (r == rank()) continue;
      traffic.Add(kKind, local, r);
      traffic.Expect(kKind, parts[r], r);
    }
    endpoint_.Advance(traffic.out, traffic.in);
    parts[rank()].copy_(local);
    endpoint_.Transfer(traffic.out, traffic.in);
    traffic.Land();
  });
}

void HostCommunicator::DoAllToAll(at::TensorList send, at::TensorList receive) {
  constexpr Collective kKind = Collective::kAllToAll;
  Guarded(kKind, [&] {
    endpoint_.BeginCollective({.kind = kKind, .dtype = static_cast<uint8_t>(send[0].scalar_type())});
    Traffic traffic;
    for (const int r : c10::irange(size())) {
      if (r == rank()) continue;
      traffic.Add(kKind, send[r], r);
      traffic.Expect(kKind, receive[r], r);
    }
    endpoint_.Advance(traffic.out, traffic.in);
    receive[rank()].copy_(send[rank()]);
    endpoint_.Transfer(traffic.out, traffic.in);
    traffic.Land();
  });
}

void HostCommunicator::DoBroadcast(at::Tensor& tensor, int root) {
  constexpr Collective kKind = Collective::kBroadcast;
  Guarded(kKind, [&] {
    HostCall call = Describe(kKind, tensor);
    call.root = root;
    endpoint_.BeginCollective(call);
    Traffic traffic;
    if (rank() != root) {
      traffic.Expect(kKind, tensor, root);
    } else {
      for (const int r : c10::irange(size()))
        if (r != root) traffic.Add(kKind, tensor, r);
    }
    endpoint_.Transfer(traffic.out, traffic.in);
    traffic.Land();
  });
}

void HostCommunicator::DoSend(const at::Tensor& tensor, int to) {
  Guarded(Collective::kSend, [&] {
    endpoint_.BeginPointToPoint(Collective::kSend);
    Traffic traffic;
    traffic.Add(Collective::kSend, tensor, to);
    endpoint_.Transfer(traffic.out, traffic.in);
  });
}

void HostCommunicator::DoRecv(at::Tensor& tensor, int from) {
  Guarded(Collective::kRecv, [&] {
    endpoint_.BeginPointToPoint(Collective::kRecv);
    Traffic traffic;
    traffic.Expect(Collective::kRecv, tensor, from);
    endpoint_.Transfer(traffic.out, traffic.in);
    traffic.Land();
  });
}

void HostCommunicator::DoStartShift(const at::Tensor& send, int to, at::Tensor& receive, int from) {
  Guarded(Collective::kShift, [&] {
    endpoint_.BeginPointToPoint(Collective::kShift);
    shift_.emplace();
    shift_->Add(Collective::kShift, send, to);
    shift_->Expect(Collective::kShift, receive, from);
    endpoint_.Advance(shift_->out, shift_->in);
  });
}

void HostCommunicator::DoFinishShift() {
  if (!shift_) return;
  Guarded(Collective::kShift, [&] {
    endpoint_.Transfer(shift_->out, shift_->in);
    shift_->Land();
    shift_.reset();
  });
}

void HostCommunicator::DoBarrier() {
  Guarded(Collective::kBarrier, [&] {
    endpoint_.BeginCollective({.kind = Collective::kBarrier});
    endpoint_.Barrier();
  });
}

std::unique_ptr<Communicator> JoinGroup(const std::shared_ptr<HostSegment>& segment, std::string_view name,
                                        int world_rank, HostCommunicatorOptions options) {
  const int group = segment->FindGroup(name, world_rank);
  if (group < 0 || segment->groups()[group].ranks.size() == 1) return std::make_unique<SingleRank>();
  return std::make_unique<HostCommunicator>(segment, group, world_rank, options);
}

}  // namespace tessera::parallel
