#include "parallel/nccl/nccl_groups.h"

#include <ATen/ATen.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/device_runtimes.h"
#include "parallel/segment/mesh_groups.h"

namespace tessera::parallel {
namespace {

using kernels::NcclApi;
using kernels::NcclComm;
using kernels::NcclId;
using kernels::NcclResult;

// What a rank reports before any NCCL object is created.
struct Card {
  int32_t nccl = 0;                 // version; 0: no NCCL, `text` has the reason
  std::array<char, 508> text = {};  // the card's name
};

Card CardOf(at::Device device, const kernels::DeviceRuntime& runtime, const NcclApi*& api) {
  std::string text;
  Card card;
  api = runtime.nccl(text);
  if (api != nullptr && api->version != kernels::kNcclApiVersion) {
    text = "its functions are of version " + std::to_string(api->version) + ", the worker's of version " +
           std::to_string(kernels::kNcclApiVersion) + "; install both from one build";
    api = nullptr;
  }
  int version = 0;
  if (api != nullptr && api->get_version(&version) != NcclResult::kSuccess) version = 0;
  if (version > 0) {
    text = runtime.card(device.index());
    card.nccl = text.empty() ? 0 : version;
    if (text.empty()) text = "the device is only a part of a GPU";
  }
  std::strncpy(card.text.data(), text.c_str(), card.text.size() - 1);
  return card;
}

template <typename T>
at::Tensor Bytes(T& value) {
  return at::from_blob(&value, {static_cast<int64_t>(sizeof(T))}, at::kByte);
}

// Returns why the ranks cannot use NCCL; empty if they can.
std::string Objection(const std::vector<Card>& cards, const std::vector<int>& ranks) {
  const auto name = [&](size_t i) { return "rank " + std::to_string(ranks[i]); };
  for (size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].nccl == 0) return name(i) + ": " + cards[i].text.data();
  }
  for (size_t i = 1; i < cards.size(); ++i) {
    if (cards[i].nccl != cards[0].nccl) return name(i) + " uses another version of NCCL than " + name(0);
    for (size_t j = 0; j < i; ++j) {
      if (cards[i].text == cards[j].text) return name(j) + " and " + name(i) + " share a GPU";
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<NcclGroups> NcclGroups::Connect(at::Device device, const std::shared_ptr<HostSegment>& segment,
                                                int world_rank, Communicator& control,
                                                const std::vector<std::string_view>& names, const NcclOptions& options,
                                                std::string& reason) {
  const kernels::DeviceRuntime& runtime = kernels::DeviceRuntimeOf(device.type());
  const NcclApi* api = nullptr;
  Card own = CardOf(device, runtime, api);
  std::vector<Card> cards(static_cast<size_t>(control.size()));
  control.Gather(Bytes(own),
                 at::from_blob(cards.data(), {static_cast<int64_t>(cards.size() * sizeof(Card))}, at::kByte));
  const int world = segment->FindGroup(names.front(), world_rank);
  TORCH_CHECK(world >= 0, "the segment has no group ", std::string(names.front()), " of rank ", world_rank);
  const std::vector<int>& ranks = segment->groups()[static_cast<size_t>(world)].ranks;
  reason = Objection(cards, ranks);
  if (!reason.empty()) return nullptr;
  std::vector<std::string> names_of_cards;
  for (const Card& card : cards) names_of_cards.emplace_back(card.text.data());
  std::unique_ptr<NcclGroups> groups(new NcclGroups({.api = *api,
                                                     .runtime = runtime,
                                                     .device = device,
                                                     .segment = segment,
                                                     .world_rank = world_rank,
                                                     .options = options},
                                                    std::move(names_of_cards)));
  groups->ConnectWorld(names.front(), control);
  for (const std::string_view name : names) groups->Split(name);
  return groups;
}

void NcclGroups::Fail(const Group& group, const char* call, const NcclFailure& failure) const {
  const CommError error({.rank = rank_.world_rank,
                         .group = rank_.segment->groups()[static_cast<size_t>(group.index)].name,
                         .call = call,
                         .sequence = connected_,
                         .culprit = failure.culprit,
                         .reason = failure.reason,
                         .relayed = failure.relayed});
  if (!failure.relayed) rank_.segment->Poison(failure.culprit, error.what());
  throw error;
}

void NcclGroups::Settle(NcclResult result, NcclComm* comm, const Group& group, const char* call) const {
  if (result == NcclResult::kInProgress) {
    // The whole world of ranks must arrive, whichever group is created.
    NcclWait wait(rank_, world_.index, Collective::kBarrier, connected_, rank_.options.connect_deadline);
    while (result == NcclResult::kInProgress) {
      if (const std::optional<NcclFailure> failure = wait.Pass(comm)) Fail(group, call, *failure);
      result = StateOf(rank_, comm);
    }
  }
  if (result != NcclResult::kSuccess) Fail(group, call, {.reason = NcclErrorText(rank_.api, result, comm)});
}

void NcclGroups::WaitUntil(const std::function<bool()>& is_so) const {
  if (is_so()) return;
  NcclWait wait(rank_, world_.index, Collective::kBarrier, 0, rank_.options.deadline);
  while (!is_so()) {
    if (const std::optional<NcclFailure> failure = wait.Pass(world_.handle->get())) Fail(world_, "Wait", *failure);
    for (const auto& [name, group] : groups_) {
      const NcclResult state = StateOf(rank_, group.handle->get());
      if (state == NcclResult::kSuccess || state == NcclResult::kInProgress) continue;
      Fail(group, "Wait", {.reason = NcclErrorText(rank_.api, state, group.handle->get())});
    }
  }
}

void NcclGroups::ConnectWorld(std::string_view name, Communicator& control) {
  world_ = {.index = rank_.segment->FindGroup(name, rank_.world_rank)};
  ++connected_;
  NcclId id;
  // A further byte indicates whether there is an id, because the other ranks wait for it.
  std::array<char, sizeof(NcclId) + 1> message = {};
  NcclResult made = NcclResult::kSuccess;
  if (control.rank() == 0) {
    made = rank_.api.get_unique_id(&id);
    message.back() = made == NcclResult::kSuccess ? 1 : 0;
    std::memcpy(message.data(), id.bytes.data(), sizeof(id));
  }
  control.Broadcast(Bytes(message), 0);
  if (made != NcclResult::kSuccess) {
    Fail(world_, "Connect", {.culprit = rank_.world_rank, .reason = NcclErrorText(rank_.api, made, nullptr)});
  }
  if (message.back() == 0) {
    const int first = rank_.segment->groups()[static_cast<size_t>(world_.index)].ranks[0];
    Fail(world_, "Connect",
         {.culprit = first, .reason = "rank " + std::to_string(first) + " sent no NCCL id to the other ranks"});
  }
  std::memcpy(id.bytes.data(), message.data(), sizeof(id));
  NcclComm* comm = nullptr;
  const NcclResult result = rank_.api.init_rank(&comm, control.size(), id, control.rank(), world_.ctas);
  Settle(result, comm, world_, "Connect");
  world_.handle = std::make_shared<NcclHandle>(rank_, comm);
}

// All ranks split in the same way: if an axis has the members of an earlier one on this rank, it has them on every
// rank.
void NcclGroups::Split(std::string_view name) {
  Group group{.index = rank_.segment->FindGroup(name, rank_.world_rank),
              .ctas = name == MeshGroupName::kRing ? rank_.options.ring_ctas : 0};
  if (group.index < 0) return;
  const auto ranks = [&](const Group& of) -> const std::vector<int>& {
    return rank_.segment->groups()[static_cast<size_t>(of.index)].ranks;
  };
  if (ranks(group).size() == 1) return;
  const auto shares = [&](const Group& other) { return ranks(other) == ranks(group) && other.ctas == group.ctas; };
  if (shares(world_)) {
    group.handle = world_.handle;
  } else {
    const auto same = std::ranges::find_if(groups_, [&](const auto& entry) { return shares(entry.second); });
    if (same != groups_.end()) group.handle = same->second.handle;
  }
  if (group.handle == nullptr) {
    if (base::Planted("group_not_split") && rank_.world_rank == 1) return;
    ++connected_;
    NcclComm* comm = nullptr;
    const NcclResult result =
        rank_.api.split(world_.handle->get(), ranks(group)[0], rank_.world_rank, &comm, group.ctas);
    Settle(result, world_.handle->get(), group, "Split");
    NcclResult state = NcclResult::kInProgress;
    Settle(state, comm, group, "Split");
    group.handle = std::make_shared<NcclHandle>(rank_, comm);
  }
  groups_.emplace(name, std::move(group));
}

std::unique_ptr<Communicator> NcclGroups::Join(std::string_view name) const {
  const auto group = groups_.find(name);
  if (group == groups_.end()) return std::make_unique<SingleRank>();
  return std::make_unique<NcclCommunicator>(rank_, group->second.handle, group->second.index);
}

}  // namespace tessera::parallel
