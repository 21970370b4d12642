// LateNccl simulates NCCL within one process, on the pretend device, with threads as ranks. It executes what NCCL may
// do at the worst time that NCCL allows:
// - a transfer is made only when something waits for it: a later operator, copy or mark on its stream;
// - a receive buffer is NaN from the moment the call is issued, and a send buffer is read when the transfer is made. A
//   reader that does not wait reads NaN, and a send buffer that is changed too early sends the changed numbers;
// - a call on the side stream that does not wait for the current stream's use of its memory transfers NaN;
// - freed memory is reused at once, unless the current stream waits for the transfer.
// Each violation is also reported with its rank and call. LateNccl checks that both ends of a transfer agree on size
// and type and that ranks issue the same collectives in the same order. If all ranks wait for each other, it ends the
// group with an asynchronous error that says so instead of hanging.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/device_runtime.h"
#include "kernels/nccl_api.h"
#include "tests/support/pretend_device.h"

namespace tessera {

struct LateNcclFaults {
  int nccl_version = 22809;
  int api_version = kernels::kNcclApiVersion;
  std::optional<int> other_version_of_rank;  // the thread that asks as number n, from 0, finds another NCCL version
  bool one_card = false;                     // all ranks compute on one device
  bool no_id = false;
  bool init_never_ends = false;
  bool says_nothing = false;  // does not report that ranks wait for each other, like NCCL
  // Reports an asynchronous error in call `breaks_call` of rank `breaks_rank`. Calls count from 1; 0: no error.
  int breaks_rank = 0;
  int64_t breaks_call = 0;
};

// Only one instance may exist at a time. The pretend device has NCCL while it exists.
class LateNccl final : public LateWork {
 public:
  explicit LateNccl(const LateNcclFaults& faults = {});
  ~LateNccl() override;

  // Violations of NCCL's rules, as sentences that begin with the rank and its call.
  std::vector<std::string> problems() const;
  // Count the communicators created and destroyed so far, by all ranks.
  int64_t made() const;
  int64_t destroyed() const;
  // NCCL calls so far; a group counts once.
  int64_t calls() const;
  // Returns the limits of thread blocks (CTAs) of the communicators split off, in call order; 0: no limit.
  std::vector<int> ctas() const;

  void BeforeOperator() override;
  void OnUse(const void* memory, int64_t bytes) override;
  bool TakesOver(void* block) override;

 private:
  friend struct LateNcclTable;
  struct Rank;
  struct Group;
  struct Op;
  struct Part;
  struct Mark;
  enum class Kind { kSend, kReceive, kSum, kReduceScatter, kGather, kBroadcast };
  enum Stream { kCompute, kSide };
  using Lock = std::unique_lock<std::mutex>;
  using Result = kernels::NcclResult;

  // These functions implement the table for the current thread's rank.
  Result Init(kernels::NcclComm** comm, int ranks, const kernels::NcclId& id, int rank);
  Result Split(kernels::NcclComm* comm, int color, int key, kernels::NcclComm** part, int ctas);
  Result Add(Part part, void* stream);
  Result EndGroup();
  Result AsyncError(kernels::NcclComm* comm, Result* error);
  Result Destroy(kernels::NcclComm* comm);
  void LetWait(void* stream, void* other);
  void Order(void* stream, void* other);
  kernels::DeviceMark* RecordMark();
  bool IsReached(const Mark& mark);
  void WaitFor(const Mark& mark);

  kernels::NcclComm* Join(Group& group, int rank, Rank& owner);
  Rank& Own();
  void Leave(Rank& rank);

  // The functions below require the lock.
  Result Post(std::vector<Part> parts, Stream stream);
  // If the thread captures a graph, launching the graph posts the parts.
  Result PostOrCapture(std::vector<Part> parts, Stream stream);
  void Match(const std::shared_ptr<Op>& op, size_t part);
  void CheckAlike(const Part& one, const Part& other);
  void Prepare(Op& op);
  static void Demand(Op& op);
  bool Advance(bool undemanded);
  bool TryPart(Part& part, bool undemanded);
  void Make(std::vector<Part*>& parts);
  void Transfer(Part& send, Part& receive);
  void FinishOps();
  bool AllWait() const;
  void BlameAll();
  void Break(const std::string& text);
  // Waits until all are done. False if they never will be.
  bool Await(Lock& lock, Rank& rank, const std::vector<std::shared_ptr<Op>>& ops);
  static bool AreDone(const std::vector<std::shared_ptr<Op>>& ops);
  void Tell(const Op& op, const std::string& what);
  static std::string Name(const Part& part);

  const LateNcclFaults faults_;
  kernels::NcclApi api_;
  kernels::DeviceRuntime runtime_;
  const kernels::DeviceRuntime& before_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<kernels::NcclComm>> comms_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::map<std::string, Group*> joining_;            // by id, or by what is split and how
  std::vector<std::shared_ptr<Op>> pending_, done_;  // groups refer to their parts
  std::vector<std::string> problems_;
  bool broken_ = false;
  std::vector<int> ctas_;
  int64_t ids_ = 0, destroyed_ = 0, calls_ = 0, asked_ = 0;
};

}  // namespace tessera
