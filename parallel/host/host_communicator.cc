#include "parallel/host/host_communicator.h"

#include <c10/core/ScalarType.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>

namespace tessera::parallel {
namespace {

// Sums up to this size use one exchange of everything instead of two exchanges of parts.
constexpr int64_t kDirectSumBytes = 16 << 10;

std::string DtypeName(uint8_t dtype) {
  return dtype < static_cast<uint8_t>(at::ScalarType::NumOptions) ? c10::toString(static_cast<at::ScalarType>(dtype))
                                                                  : "unknown";
}

void SetSizes(HostCall& call, at::IntArrayRef sizes) {
  call.dims = std::min<int>(static_cast<int>(sizes.size()), HostCall::kMaxDims);
  std::copy_n(sizes.begin(), call.dims, call.sizes.begin());
}

HostCall Describe(Collective kind, const at::Tensor& tensor) {
  HostCall call{.kind = kind, .dtype = static_cast<uint8_t>(tensor.scalar_type())};
  SetSizes(call, tensor.sizes());
  return call;
}

// Returns the elements in host memory, as a view or a copy.
at::Tensor Flat(const at::Tensor& tensor) { return tensor.cpu().view(-1); }

int64_t BytesOf(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

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
      return Add<uint64_t, uint64_t>;  // wraps around as two's complement does
    default:
      TORCH_CHECK(false, "cannot sum ", dtype, " over ranks");
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
                {.deadline = options.deadline,
                 .spin = options.spin,
                 .dtype_name = DtypeName,
                 .rendezvous = options.rendezvous}),
      addresses_devices_(options.addresses_devices) {}

at::Tensor HostCommunicator::View(const at::Tensor& tensor) const {
  if (tensor.is_cpu() || !addresses_devices_) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, tensor.options().device(at::kCPU));
}

template <typename Body>
void HostCommunicator::Guarded(Collective kind, Body body) {
  try {
    body();
    endpoint_.EndCall();
  } catch (const HostFailure& failure) {
    throw CommError({.rank = endpoint_.WorldRank(rank()),
                     .group = endpoint_.group_name(),
                     .call = std::string(Name(kind)),
                     .sequence = PointToPoint(kind) ? endpoint_.point_to_point_calls() : endpoint_.collectives(),
                     .culprit = failure.culprit,
                     .reason = failure.reason,
                     .relayed = failure.relayed});
  }
}

void HostCommunicator::Traffic::Add(Collective kind, const at::Tensor& tensor, int to) {
  at::Tensor bytes = tensor;
  if (!tensor.is_cpu()) {
    auto copy = std::ranges::find_if(copies, [&](const auto& entry) { return entry.first.is_same(tensor); });
    if (copy == copies.end()) copy = copies.insert(copies.end(), {tensor, tensor.cpu()});
    bytes = copy->second;
  }
  staged.push_back(bytes);
  out.push_back({.to = to,
                 .data = static_cast<const std::byte*>(bytes.const_data_ptr()),
                 .bytes = BytesOf(bytes),
                 .call = Describe(kind, tensor)});
}

void HostCommunicator::Traffic::Expect(Collective kind, const at::Tensor& tensor, int from) {
  at::Tensor into = tensor;
  if (!tensor.is_cpu()) {
    into = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
    landings.emplace_back(into, tensor);
  }
  staged.push_back(into);
  in.push_back({.from = from,
                .data = static_cast<std::byte*>(into.data_ptr()),
                .bytes = BytesOf(into),
                .call = Describe(kind, tensor)});
}

void HostCommunicator::Traffic::Land() {
  for (const auto& [from, to] : landings) to.copy_(from);
}

// result = the sum of `own` and of the part that arrives from each other rank, while `traffic` is sent.
void HostCommunicator::AddParts(Collective kind, Traffic& traffic, const at::Tensor& own, const at::Tensor& result) {
  endpoint_.TransferAndSum(traffic.out, {.call = Describe(kind, own),
                                         .bytes = BytesOf(own),
                                         .own = static_cast<std::byte*>(own.data_ptr()),
                                         .result = static_cast<std::byte*>(result.data_ptr()),
                                         .add = Adder(own.scalar_type())});
}

void HostCommunicator::DoSum(const at::Tensor& given, const at::Tensor& wanted) {
  constexpr Collective kKind = Collective::kSum;
  const at::Tensor in = View(given), out = View(wanted);
  Guarded(kKind, [&] {
    endpoint_.BeginCollective(Describe(kKind, in));
    const at::Tensor values = Flat(in);
    const bool direct = BytesOf(values) <= kDirectSumBytes;
    // Data that is still to be sent must not be overwritten: if every rank sends everything to all, `out` cannot be
    // `in`.
    const bool apart = out.is_cpu() && (!direct || out.data_ptr() != values.data_ptr());
    const at::Tensor sum = apart ? out.view(-1) : at::empty_like(values);
    if (direct) {
      Traffic traffic;
      for (const int r : c10::irange(size()))
        if (r != rank()) traffic.Add(kKind, values, r);
      AddParts(kKind, traffic, values, sum);
    } else {
      const std::vector<int64_t> rows = EvenRows(values.numel(), size());
      const std::vector<at::Tensor> parts = RankParts(values, rows, 0), sums = RankParts(sum, rows, 0);
      Traffic scatter, gather;
      for (const int r : c10::irange(size())) {
        if (r == rank()) continue;
        scatter.Add(kKind, parts[r], r);
        gather.Add(kKind, sums[rank()], r);
        gather.Expect(kKind, sums[r], r);
      }
      AddParts(kKind, scatter, parts[rank()], sums[rank()]);
      endpoint_.Transfer(gather.out, gather.in);
    }
    if (!apart) out.copy_(sum.view(out.sizes()));
  });
}

void HostCommunicator::DoReduceScatter(const at::Tensor& given, const at::Tensor& wanted, at::IntArrayRef rows) {
  constexpr Collective kKind = Collective::kReduceScatter;
  const at::Tensor in = View(given), out = View(wanted);
  Guarded(kKind, [&] {
    HostCall call = Describe(kKind, in);
    call.rows = rows.vec();
    endpoint_.BeginCollective(call);
    const std::vector<at::Tensor> parts = RankParts(in.cpu(), rows, 0);
    Traffic traffic;
    for (const int r : c10::irange(size()))
      if (r != rank()) traffic.Add(kKind, parts[r], r);
    const at::Tensor sum = out.is_cpu() ? out : at::empty_like(parts[rank()]);
    AddParts(kKind, traffic, parts[rank()], sum);
    if (!out.is_cpu()) out.copy_(sum);
  });
}

void HostCommunicator::DoBroadcast(const at::Tensor& given, int root) {
  constexpr Collective kKind = Collective::kBroadcast;
  const at::Tensor tensor = View(given);
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

void HostCommunicator::DoStart(const Call& call, std::span<const Transfer> transfers) {
  started_ = call.kind;
  Guarded(call.kind, [&] {
    if (PointToPoint(call.kind)) {
      endpoint_.BeginPointToPoint(call.kind);
    } else {
      HostCall note{.kind = call.kind, .dtype = static_cast<uint8_t>(call.dtype), .rows = call.rows};
      SetSizes(note, call.sizes);
      endpoint_.BeginCollective(note);
    }
    under_way_.emplace();
    for (const Transfer& transfer : transfers) {
      if (transfer.receives) {
        under_way_->Expect(call.kind, View(transfer.piece), transfer.peer);
      } else {
        under_way_->Add(call.kind, View(transfer.piece), transfer.peer);
      }
    }
    endpoint_.Advance(under_way_->out, under_way_->in);
  });
}

void HostCommunicator::DoFinish() {
  if (!under_way_) return;
  Guarded(started_, [&] {
    endpoint_.ContinueCall(started_);
    endpoint_.Transfer(under_way_->out, under_way_->in);
    under_way_->Land();
    under_way_.reset();
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
