#include "parallel/nccl/nccl_communicator.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/macros/planted.h"

namespace tessera::parallel {
namespace {

using kernels::NcclResult;
using kernels::NcclType;

NcclType TypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return NcclType::kFloat64;
    case at::kFloat:
      return NcclType::kFloat32;
    case at::kHalf:
      return NcclType::kFloat16;
    case at::kBFloat16:
      return NcclType::kBfloat16;
    case at::kLong:
      return NcclType::kInt64;
    case at::kInt:
      return NcclType::kInt32;
    case at::kChar:
      return NcclType::kInt8;
    case at::kByte:
    case at::kBool:
      return NcclType::kUint8;
    default:
      TORCH_CHECK(false, "NCCL has no ", dtype);
  }
}

size_t CountOf(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

int RankIn(const HostGroup& group, int world_rank) {
  const auto found = std::ranges::find(group.ranks, world_rank);
  TORCH_CHECK(found != group.ranks.end(), "rank ", world_rank, " is not in group ", group.name);
  return static_cast<int>(found - group.ranks.begin());
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclRank& place, std::shared_ptr<NcclHandle> handle, int group)
    : place_(place),
      handle_(std::move(handle)),
      group_(group),
      rank_(RankIn(place.segment->groups().at(static_cast<size_t>(group)), place.world_rank)) {}

NcclCommunicator::~NcclCommunicator() {
  for (const Noted& noted : noted_) place_.runtime.destroy_mark(noted.mark);
}

void* NcclCommunicator::Memory(const at::Tensor& tensor) const {
  TORCH_CHECK(tensor.device() == place_.device, "group ", group().name, " of ", place_.device,
              " was given a tensor of ", tensor.device());
  return tensor.data_ptr();
}

void NcclCommunicator::Begin(Collective kind) {
  kind_ = kind;
  sequence_ = PointToPoint(kind) ? ++point_to_point_ : ++collectives_;
  ForgetWhatIsDone();
  if (const std::optional<NcclFailure> poisoned = FailureByPoison(*place_.segment)) Fail(*poisoned);
  Expect(StateOf(place_, handle_->get()));
}

void NcclCommunicator::Expect(NcclResult result) {
  if (result == NcclResult::kInProgress) {
    NcclWait wait(place_, group_, kind_, sequence_, place_.options.deadline);
    while (result == NcclResult::kInProgress) {
      if (const std::optional<NcclFailure> failure = wait.Pass(handle_->get())) Fail(*failure);
      result = StateOf(place_, handle_->get());
    }
  }
  if (result != NcclResult::kSuccess) Fail({.reason = NcclErrorText(place_.api, result, handle_->get())});
}

template <typename Function, typename... Arguments>
void NcclCommunicator::Issue(Function function, const Arguments&... arguments) {
  Expect([&] {
    const std::lock_guard lock(*place_.calls);
    return function(arguments...);
  }());
}

void NcclCommunicator::Note() {
  // Captured calls are executed when the graph is launched; marks recorded during capture say nothing about them.
  if (place_.runtime.is_capturing(place_.device.index())) return;
  noted_.push_back({.kind = kind_, .sequence = sequence_, .mark = place_.runtime.record_mark(place_.device.index())});
}

void NcclCommunicator::ForgetWhatIsDone() {
  if (place_.runtime.is_capturing(place_.device.index())) return;
  while (!noted_.empty() && place_.runtime.is_reached(*noted_.front().mark)) {
    place_.runtime.destroy_mark(noted_.front().mark);
    noted_.pop_front();
  }
}

void NcclCommunicator::Fail(const NcclFailure& failure) {
  const Noted call = noted_.empty() ? Noted{.kind = kind_, .sequence = sequence_, .mark = nullptr} : noted_.front();
  const CommError error({.rank = place_.world_rank,
                         .group = group().name,
                         .call = std::string(Name(call.kind)),
                         .sequence = call.sequence,
                         .culprit = failure.culprit,
                         .reason = failure.reason,
                         .relayed = failure.relayed});
  if (!failure.relayed) place_.segment->Poison(failure.culprit, error.what());
  throw error;
}

void NcclCommunicator::Wait() {
  const int device = place_.device.index();
  const auto destroy = [this](kernels::DeviceMark* mark) { place_.runtime.destroy_mark(mark); };
  const std::unique_ptr<kernels::DeviceMark, decltype(destroy)> mark(place_.runtime.record_mark(device), destroy);
  if (place_.runtime.is_reached(*mark)) return;
  NcclWait wait(place_, group_, kind_, sequence_, place_.options.deadline);
  while (!place_.runtime.is_reached(*mark)) {
    if (const std::optional<NcclFailure> failure = wait.Pass(handle_->get())) {
      ForgetWhatIsDone();
      Fail(*failure);
    }
  }
}

void NcclCommunicator::DoSum(const at::Tensor& in, const at::Tensor& out) {
  Begin(Collective::kSum);
  if (in.numel() == 0) return;
  Issue(place_.api.all_reduce, Memory(in), Memory(out), CountOf(in), TypeOf(in.scalar_type()), handle_->get(),
        CurrentStream());
  Note();
}

void NcclCommunicator::DoReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows) {
  Begin(Collective::kReduceScatter);
  if (in.numel() == 0) return;
  const int64_t most = *std::ranges::max_element(rows);
  at::Tensor from = in, to = out;
  if (std::ranges::any_of(rows, [most](int64_t count) { return count != most; })) {
    // NCCL scatters parts of equal size only.
    std::vector<int64_t> shape = in.sizes().vec();
    shape[0] = most * size();
    from = at::zeros(shape, in.options());
    const std::vector<at::Tensor> parts = RankParts(in, rows, 0);
    for (const int r : c10::irange(size())) from.narrow(0, most * r, rows[static_cast<size_t>(r)]).copy_(parts[r]);
    shape[0] = most;
    to = at::empty(shape, out.options());
  }
  Issue(place_.api.reduce_scatter, Memory(from), Memory(to), CountOf(to), TypeOf(in.scalar_type()), handle_->get(),
        CurrentStream());
  Note();
  if (!to.is_same(out)) out.copy_(to.narrow(0, 0, rows[static_cast<size_t>(rank_)]));
}

void NcclCommunicator::DoGather(const Call&, const at::Tensor& in, const at::Tensor& out) {
  Begin(Collective::kAllGather);
  if (in.numel() == 0) return;
  Issue(place_.api.all_gather, Memory(in), Memory(out), CountOf(in), TypeOf(in.scalar_type()), handle_->get(),
        CurrentStream());
  Note();
}

void NcclCommunicator::DoBroadcast(const at::Tensor& tensor, int root) {
  Begin(Collective::kBroadcast);
  if (tensor.numel() == 0) return;
  Issue(place_.api.broadcast, Memory(tensor), CountOf(tensor), TypeOf(tensor.scalar_type()), root, handle_->get(),
        CurrentStream());
  Note();
}

void NcclCommunicator::DoStart(const Call& call, std::span<const Transfer> transfers) {
  Begin(call.kind);
  const bool aside = call.kind == Collective::kExchange && !base::Planted("exchange_on_the_computing_stream");
  void* const stream = aside ? SideStream() : CurrentStream();
  // The memory of received pieces may still be in use, and sent pieces may not be computed yet.
  if (aside && !base::Planted("start_waits_for_nothing")) {
    place_.runtime.wait_for_stream(place_.device.index(), stream, CurrentStream());
  }
  Issue(place_.api.group_start);
  for (const Transfer& transfer : transfers) {
    // Both sides know that this transfer is empty.
    if (transfer.piece.numel() == 0) continue;
    const auto pass = [&](auto function, size_t count) {
      Issue(function, Memory(transfer.piece), count, TypeOf(transfer.piece.scalar_type()), transfer.peer,
            handle_->get(), stream);
    };
    const size_t count = CountOf(transfer.piece);
    if (transfer.receives) {
      pass(place_.api.receive, count);
    } else {
      pass(place_.api.send, base::Planted("count_off_by_one") && place_.world_rank == 1 ? count - 1 : count);
    }
    if (aside) under_way_.push_back(transfer.piece);
  }
  Issue(place_.api.group_end);
  if (!aside) Note();
}

void NcclCommunicator::DoFinish() {
  if (under_way_.empty()) return;
  if (!base::Planted("finish_waits_for_nothing")) {
    place_.runtime.wait_for_stream(place_.device.index(), CurrentStream(), SideStream());
  }
  // The next user of this memory is ordered after the current stream.
  under_way_.clear();
  Note();
}

void NcclCommunicator::DoBarrier() {
  Begin(Collective::kBarrier);
  const at::Tensor one = at::ones({1}, at::TensorOptions(at::kInt).device(place_.device));
  Issue(place_.api.all_reduce, Memory(one), Memory(one), 1, NcclType::kInt32, handle_->get(), CurrentStream());
  Note();
  Wait();
}

}  // namespace tessera::parallel
