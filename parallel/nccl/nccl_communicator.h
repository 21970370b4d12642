// Collectives between ranks that each have a GPU of their own, through NCCL: calls are issued on the device's streams
// and return at once, and tensors must lie on the device.
//
// What passes between Start and Finish does so on the device's side stream, so that computation goes on meanwhile: what
// is received waits for all that was issued before Start, and what is issued after Finish waits for it. All other calls
// run on the current stream.
//
// NCCL tells nobody that another rank is gone. So every call looks at the poison of the ranks' segment and at the
// asynchronous error of its communicator first, and whoever waits for the device does it with Wait, which looks at both
// again and again until a deadline. Any of the three throws CommError, names the first call that is not known to be
// done, and ends the whole world of ranks.
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
  // Group `group` of the segment, whose ranks are those of `handle` in the same order.
  NcclCommunicator(const NcclRank& place, std::shared_ptr<NcclHandle> handle, int group);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group().ranks.size()); }
  bool capturable() const override { return true; }

  // Returns when all that was issued on the current stream so far is done, or throws CommError.
  void Wait();

 private:
  // A call that the device may not have done yet.
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

  // Counts the call, once it is known that the group still works.
  void Begin(Collective kind);
  // Calls NCCL.
  template <typename Function, typename... Arguments>
  void Issue(Function function, const Arguments&... arguments);
  // What NCCL returned: passes when the communicator can be used again.
  void Expect(kernels::NcclResult result);
  // Remembers the call until the device has done it.
  void Note();
  void ForgetWhatIsDone();

  [[noreturn]] void Fail(const NcclFailure& failure);
  const HostGroup& group() const { return place_.segment->groups()[static_cast<size_t>(group_)]; }
  void* CurrentStream() const { return place_.runtime.current_stream(place_.device.index()); }
  void* SideStream() const { return place_.runtime.side_stream(place_.device.index()); }
  // Throws what is no memory of the device.
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
