#include "parallel/nccl/nccl_rank.h"

#include <algorithm>
#include <thread>

namespace tessera::parallel {
namespace {

using kernels::NcclResult;

// Polls without sleeping for this long; by then most of the device's next operations have completed.
constexpr std::chrono::microseconds kSpin(200);
constexpr std::chrono::microseconds kSleep(100);

}  // namespace

std::optional<NcclFailure> FailureByPoison(const HostSegment& segment) {
  const std::optional<HostPoison> poison = segment.poison();
  if (!poison) return std::nullopt;
  return NcclFailure{.culprit = poison->rank, .reason = poison->reason, .relayed = true};
}

std::string NcclErrorText(const kernels::NcclApi& api, NcclResult result, kernels::NcclComm* comm) {
  std::string text = std::string("NCCL: ") + api.error_text(result);
  const char* last = api.last_error(comm);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return text;
}

NcclResult StateOf(const NcclRank& rank, kernels::NcclComm* comm) {
  NcclResult state = NcclResult::kSuccess;
  const std::lock_guard lock(*rank.calls);
  return rank.api.async_error(comm, &state) == NcclResult::kSuccess ? state : NcclResult::kInternalError;
}

NcclWait::NcclWait(const NcclRank& rank, int group, Collective kind, int64_t sequence,
                   std::chrono::nanoseconds deadline)
    : rank_(rank), group_(group), kind_(kind), sequence_(sequence), deadline_(deadline) {
  host_layout::RankArea& own = AreaOf(rank.world_rank);
  own.call = static_cast<uint64_t>(sequence);
  own.activity = static_cast<uint32_t>(kind) + 1;
}

NcclWait::~NcclWait() { AreaOf(rank_.world_rank).activity = 0; }

host_layout::RankArea& NcclWait::AreaOf(int world_rank) const {
  const std::vector<int>& ranks = rank_.segment->groups()[static_cast<size_t>(group_)].ranks;
  return rank_.segment->Area(group_, static_cast<int>(std::ranges::find(ranks, world_rank) - ranks.begin()));
}

std::optional<NcclFailure> NcclWait::Pass(kernels::NcclComm* comm) {
  if (std::optional<NcclFailure> poisoned = FailureByPoison(*rank_.segment)) return poisoned;
  const NcclResult state = comm == nullptr ? NcclResult::kSuccess : StateOf(rank_, comm);
  if (state != NcclResult::kSuccess && state != NcclResult::kInProgress) {
    return NcclFailure{.reason = NcclErrorText(rank_.api, state, comm)};
  }
  const auto passed = std::chrono::steady_clock::now() - begin_;
  if (passed > deadline_) return Late();
  if (passed > kSpin) {
    std::this_thread::sleep_for(kSleep);
  } else {
    std::this_thread::yield();
  }
  return std::nullopt;
}

NcclFailure NcclWait::Late() const {
  const double seconds = std::chrono::duration<double>(deadline_).count();
  std::string text = "was not complete after " + std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  NcclFailure failure{.reason = text + " s"};
  for (const int rank : rank_.segment->groups()[static_cast<size_t>(group_)].ranks) {
    if (rank == rank_.world_rank) continue;
    host_layout::RankArea& area = AreaOf(rank);
    const uint32_t activity = area.activity;
    const uint64_t call = area.call;
    const bool absent = activity == 0 || activity > kCollectives;
    if (!absent && activity == static_cast<uint32_t>(kind_) + 1 && call == static_cast<uint64_t>(sequence_)) continue;
    failure.reason += "; rank " + std::to_string(rank) + " waits in " +
                      (absent ? std::string("no call of this group")
                              : std::string(Name(static_cast<Collective>(activity - 1))) + " " + std::to_string(call));
    if (failure.culprit < 0) failure.culprit = rank;
  }
  return failure;
}

}  // namespace tessera::parallel
