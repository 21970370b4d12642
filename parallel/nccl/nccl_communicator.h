// NcclCommunicator executes collectives through NCCL between ranks that each have a separate GPU. Calls are issued on
// the device's streams and return at once. Tensors must be on the device.
//
// Transfers between Start and Finish run on the device's side stream, concurrently with computation: they wait for all
// work that was issued before Start, and work that is issued after Finish waits for them. All other calls run on the
// current stream.
//
// NCCL does not report that another rank has terminated. Therefore every call first checks the poison of the ranks'
// segment and the asynchronous error of its communicator, and code that waits for the device calls Wait, which polls
// both until a deadline. Each of the three throws CommError with the first call that is not known to be complete, and
// ends the whole world of ranks.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/nccl/nccl_rank.h"

namespace tessera::parallel {

class NcclCommunicator final : public Communicator {
 public:
  // `group` is the segment's group with the ranks of `handle` in the same order.
  NcclCommunicator(const NcclRank& place, std::shared_ptr<NcclHandle> handle, int group);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group().ranks.size()); }
  bool capturable() const override { return true; }

  // Returns once all work issued on the current stream so far is complete, or throws CommError.
  void Wait();

 private:
  // A call that the device may not have completed yet.
  struct Noted {
    Collective kind;
    int64_t sequence;
    kernels::DeviceMark* mark;
  };

  void DoSum(const at::Tensor& in, const at::Tensor& out) override;
  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef rows) override;
  void DoGather(const Call& call, const at::Tensor& in, const at::Tensor& out) override;
  void DoBroadcast(const at::Tensor& tensor, int root) override;
  void DoStart(const Call& call, std::span<const Transfer> transfers) override;
  void DoFinish() override;
  void DoBarrier() override;

  // Checks that the group still works, then counts the call.
  void Begin(Collective kind);
  // Calls an NCCL function and checks its result.
  template <typename Function, typename... Arguments>
  void Issue(Function function, const Arguments&... arguments);
  // Checks NCCL's result. Returns once the communicator can be used again.
  void Expect(kernels::NcclResult result);
  // Records the call until the device has completed it.
  void Note();
  void ForgetWhatIsDone();

  [[noreturn]] void Fail(const NcclFailure& failure);
  const HostGroup& group() const { return place_.segment->groups()[static_cast<size_t>(group_)]; }
  void* CurrentStream() const { return place_.runtime.current_stream(place_.device.index()); }
  void* SideStream() const { return place_.runtime.side_stream(place_.device.index()); }
  // Returns the tensor's address. Throws if it is not in the device's memory.
  void* Memory(const at::Tensor& tensor) const;

  const NcclRank& place_;
  const std::shared_ptr<NcclHandle> handle_;
  const int group_;
  const int rank_;
  int64_t collectives_ = 0, point_to_point_ = 0;
  Collective kind_ = Collective::kBarrier;  // of the latest call
  int64_t sequence_ = 0;
  std::deque<Noted> noted_;
  std::vector<at::Tensor> under_way_;  // pieces on the side stream
};

}  // namespace tessera::parallel
