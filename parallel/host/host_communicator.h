// HostCommunicator executes collectives between the ranks of one host through a segment of shared memory. Ranks are
// threads or processes; the code is the same. Tensors on other devices are staged through host memory, each once per
// call.
//
// Messages pass through slots, so tensors may have any size. With `rendezvous` no message waits in a slot: a send
// returns only once its receiver is in the call that receives it, so an order of calls that completes with `rendezvous`
// also completes with a library that buffers nothing.
//
// Sums are computed in rank order and are bit-equal on all ranks and in every run; bf16 and fp16 are added in fp32 and
// rounded once. A wait without progress for the deadline, a call that differs from those of the other ranks, and poison
// each throw CommError and end the whole world of ranks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/host/endpoint.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

struct HostCommunicatorOptions {
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  std::optional<std::chrono::nanoseconds> spin;  // before a wait sleeps; by default long if each rank has a core
  bool rendezvous = false;                       // a send waits for its receiver; the same on all ranks
  bool addresses_devices = false;                // the host can access the devices' memory: nothing is staged
};

class HostCommunicator final : public Communicator {
 public:
  // `group` is an index into segment->groups() and must contain `world_rank`.
  HostCommunicator(const std::shared_ptr<HostSegment>& segment, int group, int world_rank,
                   HostCommunicatorOptions options = {});

  int rank() const override { return endpoint_.rank(); }
  int size() const override { return endpoint_.size(); }

 private:
  // The messages of one call, with ownership of their memory.
  struct Traffic {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<at::Tensor> staged;                           // in host memory
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;    // sent tensors with their staged copies
    std::vector<std::pair<at::Tensor, at::Tensor>> landings;  // staged copies with the tensors to receive them

    void Add(Collective kind, const at::Tensor& tensor, int to);
    void Expect(Collective kind, const at::Tensor& tensor, int from);
    void Land();
  };

  void DoSum(const at::Tensor& in, const at::Tensor& out) override;
  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows) override;
  void DoBroadcast(const at::Tensor& tensor, int root) override;
  void DoStart(const Call& call, std::span<const Transfer> transfers) override;
  void DoFinish() override;
  void DoBarrier() override;

  // Runs `body` and converts the endpoint's exceptions to CommError.
  template <typename Body>
  void Guarded(Collective kind, Body body);

  void AddParts(Collective kind, Traffic& traffic, const at::Tensor& own, const at::Tensor& result);

  // Returns a host tensor: `tensor` itself or, if the host can access the device's memory, a view of that memory.
  at::Tensor View(const at::Tensor& tensor) const;

  HostEndpoint endpoint_;
  const bool addresses_devices_;
  Collective started_ = Collective::kExchange;
  std::optional<Traffic> under_way_;
};

// Returns the communicator of `world_rank` in the group of that name, or a SingleRank if there is no such group or it
// has one rank.
std::unique_ptr<Communicator> JoinGroup(const std::shared_ptr<HostSegment>& segment, std::string_view name,
                                        int world_rank, HostCommunicatorOptions options = {});

}  // namespace tessera::parallel
