// NCCL in one process, over the pretended device, whose ranks are threads. It does what NCCL may do at the worst moment
// that NCCL may do it:
//  - a transfer is made only when somebody waits for it: an operator, a copy or a mark behind it on its stream;
//  - memory that is received into is NaN from the moment the call is issued, and what is sent is read when the transfer
//    is made. Who does not wait reads NaN, and who uses a send buffer too early sends other numbers;
//  - a call on the side stream that does not wait for what the current stream did to its memory transfers NaN;
//  - memory that is freed is anyone's at once, unless the current stream waits for the transfer.
// Each of these is told by rank and call as well. It checks that the ends of a transfer agree on their size and type
// and that ranks issue their collectives alike. Where all ranks wait for each other it ends the group with an
// asynchronous error that says so, instead of hanging.
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
  std::optional<int> other_version_of_rank;  // the thread that asks as that many-th, from 0, has another NCCL
  bool one_card = false;                     // all ranks compute on one
  bool no_id = false;
  bool init_never_ends = false;
  bool says_nothing = false;  // of ranks that wait for each other, as NCCL does
  // The asynchronous error in the rank's call of that number, from 1; 0: none.
  int breaks_rank = 0;
  int64_t breaks_call = 0;
};

// One at a time. The pretended device has NCCL as long as it is there.
class LateNccl final : public LateWork {
 public:
  explicit LateNccl(const LateNcclFaults& faults = {});
  ~LateNccl() override;

  // What nobody may do, as sentences that begin with the rank and its call.
  std::vector<std::string> problems() const;
  // Communicators that were made and destroyed so far, by any rank.
  int64_t made() const;
  int64_t destroyed() const;
  // Calls that went to NCCL so far: a group is one.
  int64_t calls() const;
  // The bounds of thread blocks of the communicators that were split off, in the order of the calls; 0: none.
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

  // The table's functions, of the calling thread.
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

  // With the lock held.
  Result Post(std::vector<Part> parts, Stream stream);
  // Where the thread captures, the graph posts them.
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
  // Until all are done; false where they never will be.
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
  std::map<std::string, Group*> joining_;            // by the id, or by what is split how
  std::vector<std::shared_ptr<Op>> pending_, done_;  // groups remember their parts
  std::vector<std::string> problems_;
  bool broken_ = false;
  std::vector<int> ctas_;
  int64_t ids_ = 0, destroyed_ = 0, calls_ = 0, asked_ = 0;
};

}  // namespace tessera
