// Collectives between the ranks of one host through a segment of memory they share. Ranks are threads or processes: the
// code is the same. Tensors of other devices are staged through host memory.
//
// Messages pass through slots, so tensors may have any size. Sums are taken in rank order: bit-equal on all ranks and
// in every run; bf16 and fp16 are added in fp32 and rounded once. A wait in which nothing moves for the deadline, a
// call that differs from the other ranks', and poison each throw CommError and end the whole world of ranks.
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
};

class HostCommunicator final : public Communicator {
 public:
  // `group` is an index into segment->groups(), which must hold `world_rank`.
  HostCommunicator(const std::shared_ptr<HostSegment>& segment, int group, int world_rank,
                   HostCommunicatorOptions options = {});

  int rank() const override { return endpoint_.rank(); }
  int size() const override { return endpoint_.size(); }

 private:
  // Tensors of one call, as bytes; keeps alive what was staged.
  struct Traffic {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<at::Tensor> staged;
    std::vector<std::pair<at::Tensor, at::Tensor>> landings;  // staged tensor, where it belongs

    void Add(Collective kind, const at::Tensor& tensor, int to);
    void Expect(Collective kind, const at::Tensor& tensor, int from);
    void Land();
  };

  void DoAllReduceSum(at::Tensor& tensor) override;
  void DoAllGather(const at::Tensor& local, at::Tensor& whole, at::IntArrayRef rows, int64_t dim) override;
  void DoReduceScatterSum(const at::Tensor& whole, at::Tensor& local, at::IntArrayRef rows, int64_t dim) override;
  void DoAllToAll(at::TensorList send, at::TensorList receive) override;
  void DoBroadcast(at::Tensor& tensor, int root) override;
  void DoSend(const at::Tensor& tensor, int to) override;
  void DoRecv(at::Tensor& tensor, int from) override;
  void DoStartShift(const at::Tensor& send, int to, at::Tensor& receive, int from) override;
  void DoFinishShift() override;
  void DoBarrier() override;

  // Runs `body`, with what it throws of the endpoint's turned into CommError.
  template <typename Body>
  void Guarded(Collective kind, Body body);

  void Sum(Collective kind, Traffic& traffic, const at::Tensor& own, at::Tensor& result);

  HostEndpoint endpoint_;
  std::optional<Traffic> shift_;
};

// The communicator of `world_rank` in the group of that name; SingleRank where there is none or it has one rank.
std::unique_ptr<Communicator> JoinGroup(const std::shared_ptr<HostSegment>& segment, std::string_view name,
                                        int world_rank, HostCommunicatorOptions options = {});

}  // namespace tessera::parallel
