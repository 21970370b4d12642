#include "tests/support/late_nccl.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "kernels/device_runtimes.h"
#include "tests/support/pretend_graph.h"
#include "tests/support/pretend_memory.h"

namespace tessera {

// One rank's end of a communicator.
struct kernels::NcclComm {
  void* group = nullptr;  // LateNccl::Group
  int rank = 0;
  void* owner = nullptr;  // LateNccl::Rank
  int in_progress = 0;    // state queries that are still to be answered "in progress"
  int64_t calls = 0;      // groups and collectives
  int64_t collectives = 0;
  int64_t splits = 0;
  kernels::NcclResult error = kernels::NcclResult::kSuccess;
  std::string text;
  kernels::NcclComm* part = nullptr;  // the communicator being split off
  kernels::NcclComm** to = nullptr;   // where the caller wants `part`
};

namespace {

using kernels::NcclComm;
using kernels::NcclResult;
using kernels::NcclType;

// How long to wait for ranks that wait for something other than NCCL, such as host communicators. After that, a
// transfer may be made for which only one end waits; and all ranks are taken to wait for each other.
constexpr std::chrono::milliseconds kElsewhere(300);
constexpr std::chrono::seconds kTooLong(30);
constexpr int kPollsThatWait = 40;

std::atomic<LateNccl*> current = nullptr;

at::ScalarType DtypeOf(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return at::kChar;
    case NcclType::kUint8:
      return at::kByte;
    case NcclType::kInt32:
      return at::kInt;
    case NcclType::kInt64:
      return at::kLong;
    case NcclType::kFloat16:
      return at::kHalf;
    case NcclType::kFloat32:
      return at::kFloat;
    case NcclType::kFloat64:
      return at::kDouble;
    case NcclType::kBfloat16:
      return at::kBFloat16;
  }
  return at::kByte;
}

int64_t BytesOf(size_t count, NcclType type) { return static_cast<int64_t>(count * c10::elementSize(DtypeOf(type))); }

at::Tensor View(const void* memory, size_t count, NcclType type) {
  return at::from_blob(const_cast<void*>(memory), {static_cast<int64_t>(count)}, DtypeOf(type));
}

// 0xFF bytes are NaN in every floating-point dtype.
void FillWithNan(void* memory, int64_t bytes) { std::memset(memory, 0xFF, static_cast<size_t>(bytes)); }

struct Range {
  const char* begin = nullptr;
  int64_t bytes = 0;
  bool Overlaps(const Range& other) const { return begin < other.begin + other.bytes && other.begin < begin + bytes; }
};

thread_local int group_depth = 0;

}  // namespace

struct LateNccl::Rank {
  int number = 0;  // in the world
  std::array<std::shared_ptr<Op>, 2> last;
  std::array<std::vector<std::shared_ptr<Op>>, 2> waits_for;  // those for which the next on each stream waits
  int64_t operators_waited_for = 0;                           // by the side stream
  int64_t calls = 0;
  std::vector<std::shared_ptr<Op>> awaits;  // the operations it waited for last
  int polls = 0;
  bool sleeps = false, ended = false;
  std::vector<Part> grouped;
  Stream grouped_stream = kCompute;
};

// The ends of a communicator.
struct LateNccl::Group {
  std::vector<NcclComm*> ends;  // by rank; null: not joined yet
  std::vector<std::vector<Part*>> collectives;
  std::map<std::pair<int, int>, std::pair<std::vector<Part*>, std::vector<Part*>>> channels;  // sends and receives

  bool IsWhole() const { return std::ranges::find(ends, nullptr) == ends.end(); }
  Part* Counterpart(const Part& part) const;
};

struct LateNccl::Part {
  Kind kind;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;  // in one rank's part
  NcclType type = NcclType::kUint8;
  int peer = -1;  // or the root
  NcclComm* comm = nullptr;
  size_t index = 0;  // in its channel, or among the group's collectives
  Op* op = nullptr;
  std::vector<char> sent = {};  // the contents when the call was issued
  bool done = false;

  Group& group() const { return *static_cast<Group*>(comm->group); }
  Rank& rank() const { return *static_cast<Rank*>(comm->owner); }
  size_t ranks() const { return group().ends.size(); }
  Range Read() const {
    const size_t times = kind == Kind::kReduceScatter ? ranks() : 1;
    return {static_cast<const char*>(from), from == nullptr ? 0 : BytesOf(count * times, type)};
  }
  Range Written() const {
    const size_t times = kind == Kind::kGather ? ranks() : 1;
    const bool keeps = kind == Kind::kBroadcast && comm->rank == peer;
    return {static_cast<const char*>(to), to == nullptr || keeps ? 0 : BytesOf(count * times, type)};
  }
};

struct LateNccl::Op {
  Rank* rank = nullptr;
  int64_t number = 0;  // among the rank's calls on the communicator
  std::vector<Part> parts;
  std::vector<std::shared_ptr<Op>> after;
  std::vector<void*> blocks;  // freed by their owners in the meantime
  bool aside = false;         // on the side stream, not yet waited for by the current one
  bool demanded = false, done = false, spoiled = false, reported = false;

  bool IsReady() const { return AreDone(after); }
};

struct LateNccl::Mark : kernels::DeviceMark {
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<Op>> after;
};

LateNccl::Part* LateNccl::Group::Counterpart(const Part& part) const {
  const bool sends = part.kind == Kind::kSend;
  const int own = part.comm->rank;
  const auto channel = channels.find(sends ? std::pair(own, part.peer) : std::pair(part.peer, own));
  if (channel == channels.end()) return nullptr;
  const std::vector<Part*>& others = sends ? channel->second.second : channel->second.first;
  return part.index < others.size() ? others[part.index] : nullptr;
}

// Implements the functions of the tables.
struct LateNcclTable {
  using Kind = LateNccl::Kind;

  template <typename Function>
  static NcclResult Call(Function function) {
    LateNccl* const nccl = current;
    if (nccl == nullptr) return NcclResult::kInternalError;
    return function(*nccl);
  }

  static kernels::NcclApi Nccl() {
    return {
        .get_version =
            [](int* version) {
              return Call([&](LateNccl& nccl) {
                *version = nccl.faults_.nccl_version;
                const std::lock_guard lock(nccl.mutex_);
                if (nccl.faults_.other_version_of_rank && nccl.asked_++ == *nccl.faults_.other_version_of_rank)
                  *version -= 1;
                return NcclResult::kSuccess;
              });
            },
        .get_unique_id =
            [](kernels::NcclId* id) {
              return Call([&](LateNccl& nccl) {
                if (nccl.faults_.no_id) return NcclResult::kSystemError;
                const std::lock_guard lock(nccl.mutex_);
                const std::string text = "world " + std::to_string(++nccl.ids_);
                std::copy(text.begin(), text.end(), id->bytes.begin());
                return NcclResult::kSuccess;
              });
            },
        .init_rank = [](NcclComm** comm, int ranks, const kernels::NcclId& id, int rank,
                        int) { return Call([&](LateNccl& nccl) { return nccl.Init(comm, ranks, id, rank); }); },
        .split =
            [](NcclComm* comm, int color, int key, NcclComm** part, int ctas) {
              return Call([&](LateNccl& nccl) { return nccl.Split(comm, color, key, part, ctas); });
            },
        .group_start =
            [] {
              ++group_depth;
              return NcclResult::kSuccess;
            },
        .group_end = [] { return Call([](LateNccl& nccl) { return nccl.EndGroup(); }); },
        .send =
            [](const void* from, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
              return Add({.kind = Kind::kSend, .from = from, .count = count, .type = type, .peer = peer, .comm = comm},
                         stream);
            },
        .receive =
            [](void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
              return Add({.kind = Kind::kReceive, .to = to, .count = count, .type = type, .peer = peer, .comm = comm},
                         stream);
            },
        .all_reduce =
            [](const void* from, void* to, size_t count, NcclType type, NcclComm* comm, void* stream) {
              return Add({.kind = Kind::kSum, .from = from, .to = to, .count = count, .type = type, .comm = comm},
                         stream);
            },
        .all_gather =
            [](const void* from, void* to, size_t count, NcclType type, NcclComm* comm, void* stream) {
              return Add({.kind = Kind::kGather, .from = from, .to = to, .count = count, .type = type, .comm = comm},
                         stream);
            },
        .reduce_scatter =
            [](const void* from, void* to, size_t count, NcclType type, NcclComm* comm, void* stream) {
              return Add(
                  {.kind = Kind::kReduceScatter, .from = from, .to = to, .count = count, .type = type, .comm = comm},
                  stream);
            },
        .broadcast =
            [](void* values, size_t count, NcclType type, int root, NcclComm* comm, void* stream) {
              return Add({.kind = Kind::kBroadcast,
                          .from = values,
                          .to = values,
                          .count = count,
                          .type = type,
                          .peer = root,
                          .comm = comm},
                         stream);
            },
        .async_error =
            [](NcclComm* comm, NcclResult* error) {
              return Call([&](LateNccl& nccl) { return nccl.AsyncError(comm, error); });
            },
        .error_text =
            [](NcclResult result) {
              return result == NcclResult::kRemoteError ? "remote process error" : "pretended error";
            },
        .last_error = [](NcclComm* comm) { return comm == nullptr ? "" : comm->text.c_str(); },
        .abort = [](NcclComm*) { return NcclResult::kSuccess; },
        .destroy = [](NcclComm* comm) { return Call([&](LateNccl& nccl) { return nccl.Destroy(comm); }); },
    };
  }

  static NcclResult Add(LateNccl::Part part, void* stream) {
    return Call([&](LateNccl& nccl) { return nccl.Add(std::move(part), stream); });
  }

  static int stream_names[2];

  static void AddTo(kernels::DeviceRuntime& runtime) {
    runtime.card = [](int) noexcept -> std::string {
      static std::atomic<int> cards = 0;
      thread_local const int own = ++cards;
      return "GPU-" + std::to_string(current.load()->faults_.one_card ? 0 : own);
    };
    runtime.current_stream = [](int) -> void* { return &stream_names[LateNccl::kCompute]; };
    runtime.side_stream = [](int) -> void* { return &stream_names[LateNccl::kSide]; };
    runtime.wait_for_stream = [](int, void* stream, void* other) { current.load()->LetWait(stream, other); };
    runtime.nccl = [](std::string&) noexcept -> const kernels::NcclApi* { return &current.load()->api_; };
    runtime.record_mark = [](int) -> kernels::DeviceMark* { return current.load()->RecordMark(); };
    runtime.is_reached = [](const kernels::DeviceMark& mark) {
      return current.load()->IsReached(static_cast<const LateNccl::Mark&>(mark));
    };
    runtime.wait = [](const kernels::DeviceMark& mark) {
      current.load()->before_.wait(mark);  // counts the wait
      current.load()->WaitFor(static_cast<const LateNccl::Mark&>(mark));
    };
    runtime.seconds_between = [](const kernels::DeviceMark& from, const kernels::DeviceMark& to) {
      return std::chrono::duration<double>(static_cast<const LateNccl::Mark&>(to).time -
                                           static_cast<const LateNccl::Mark&>(from).time)
          .count();
    };
    runtime.destroy_mark = [](kernels::DeviceMark* mark) noexcept { delete static_cast<LateNccl::Mark*>(mark); };
  }

  static LateNccl::Stream StreamOf(void* stream) {
    return stream == &stream_names[LateNccl::kSide] ? LateNccl::kSide : LateNccl::kCompute;
  }

  // The rank of the calling thread. It leaves the group when the thread ends.
  struct OwnRank {
    LateNccl* nccl = nullptr;
    LateNccl::Rank* rank = nullptr;
    ~OwnRank() {
      if (rank != nullptr && nccl == current) nccl->Leave(*rank);
    }
  };
  static OwnRank& Own() {
    thread_local OwnRank own;
    if (own.nccl != current) own = {};
    return own;
  }
};

int LateNcclTable::stream_names[2];

LateNccl::LateNccl(const LateNcclFaults& faults)
    : faults_(faults),
      api_(LateNcclTable::Nccl()),
      runtime_(kernels::DeviceRuntimeOf(at::kPrivateUse1)),
      before_(kernels::DeviceRuntimeOf(at::kPrivateUse1)) {
  api_.version = faults.api_version;
  LateNcclTable::AddTo(runtime_);
  current = this;
  kernels::SetDeviceRuntime(at::kPrivateUse1, runtime_);
  SetLateWorkOnPretendDevice(this);
}

LateNccl::~LateNccl() {
  SetLateWorkOnPretendDevice(nullptr);
  kernels::SetDeviceRuntime(at::kPrivateUse1, before_);
  current = nullptr;
  for (const std::shared_ptr<Op>& op : pending_) {
    for (void* block : op->blocks) PretendMemory::Instance().Free(block);
  }
}

std::vector<std::string> LateNccl::problems() const {
  const Lock lock(mutex_);
  return problems_;
}

int64_t LateNccl::made() const {
  const Lock lock(mutex_);
  return static_cast<int64_t>(comms_.size());
}

int64_t LateNccl::destroyed() const {
  const Lock lock(mutex_);
  return destroyed_;
}

int64_t LateNccl::calls() const {
  const Lock lock(mutex_);
  return calls_;
}

std::vector<int> LateNccl::ctas() const {
  const Lock lock(mutex_);
  return ctas_;
}

LateNccl::Rank& LateNccl::Own() {
  LateNcclTable::OwnRank& own = LateNcclTable::Own();
  if (own.rank == nullptr) {
    ranks_.push_back(std::make_unique<Rank>());
    own.nccl = this;
    own.rank = ranks_.back().get();
  }
  own.rank->polls = 0;
  return *own.rank;
}

void LateNccl::Leave(Rank& rank) {
  const Lock lock(mutex_);
  rank.ended = true;
  // The device still executes what the rank issued.
  for (const std::shared_ptr<Op>& op : pending_) {
    if (op->rank == &rank) Demand(*op);
  }
  changed_.notify_all();
}

NcclComm* LateNccl::Join(Group& group, int rank, Rank& owner) {
  comms_.push_back(
      std::make_unique<NcclComm>(NcclComm{.group = &group, .rank = rank, .owner = &owner, .in_progress = 1}));
  return group.ends[static_cast<size_t>(rank)] = comms_.back().get();
}

LateNccl::Result LateNccl::Init(NcclComm** comm, int ranks, const kernels::NcclId& id, int rank) {
  const Lock lock(mutex_);
  Rank& own = Own();
  own.number = rank;
  Group*& group = joining_[std::string(id.bytes.data())];
  if (group == nullptr) {
    groups_.push_back(std::make_unique<Group>());
    group = groups_.back().get();
    group->ends.resize(static_cast<size_t>(ranks));
  }
  if (group->ends.size() != static_cast<size_t>(ranks) || rank < 0 || rank >= ranks ||
      group->ends[static_cast<size_t>(rank)] != nullptr) {
    return Result::kInvalidArgument;
  }
  *comm = Join(*group, rank, own);
  return Result::kInProgress;
}

LateNccl::Result LateNccl::Split(NcclComm* comm, int color, int key, NcclComm** part, int ctas) {
  const Lock lock(mutex_);
  Rank& own = Own();
  if (comm->in_progress > 0) return Result::kInvalidUsage;
  ctas_.push_back(ctas);
  Group& parent = *static_cast<Group*>(comm->group);
  std::ostringstream name;
  name << &parent << ' ' << comm->splits << ' ' << color;
  Group*& group = joining_[name.str()];
  if (group == nullptr) {
    groups_.push_back(std::make_unique<Group>());
    group = groups_.back().get();
  }
  // Keys are in rank order here. The final ranks are assigned when all have called.
  group->ends.resize(std::max(group->ends.size(), size_t{0}));
  comms_.push_back(std::make_unique<NcclComm>(NcclComm{.group = group, .rank = key, .owner = &own, .in_progress = 1}));
  group->ends.push_back(comms_.back().get());
  std::ranges::sort(group->ends, {}, [](const NcclComm* end) { return end->rank; });
  ++comm->splits;
  comm->part = comms_.back().get();
  comm->to = part;
  comm->in_progress = 1;
  return Result::kInProgress;
}

LateNccl::Result LateNccl::AsyncError(NcclComm* comm, Result* error) {
  const Lock lock(mutex_);
  Group& group = *static_cast<Group*>(comm->group);
  *error = comm->error;
  if (comm->error != Result::kSuccess) return Result::kSuccess;
  if (!group.IsWhole() || faults_.init_never_ends) {
    *error = Result::kInProgress;
  } else if (comm->part != nullptr) {
    const bool all = std::ranges::all_of(group.ends, [&](NcclComm* end) { return end->splits >= comm->splits; });
    if (!all) {
      *error = Result::kInProgress;
      return Result::kSuccess;
    }
    // From now on each end has its rank in the part.
    Group& part = *static_cast<Group*>(comm->part->group);
    comm->part->rank = static_cast<int>(std::ranges::find(part.ends, comm->part) - part.ends.begin());
    *std::exchange(comm->to, nullptr) = std::exchange(comm->part, nullptr);
    comm->in_progress = 0;
  } else if (comm->in_progress > 0) {
    --comm->in_progress;
    *error = Result::kInProgress;
  }
  return Result::kSuccess;
}

LateNccl::Result LateNccl::Destroy(NcclComm* comm) {
  const Lock lock(mutex_);
  ++destroyed_;
  for (const std::shared_ptr<Op>& op : pending_) {
    if (op->parts[0].comm == comm) Demand(*op);
  }
  changed_.notify_all();
  return Result::kSuccess;
}

LateNccl::Result LateNccl::Add(Part part, void* stream) {
  const Lock lock(mutex_);
  Rank& own = Own();
  if (part.comm->error != Result::kSuccess) return part.comm->error;
  if (part.comm->in_progress > 0) {
    problems_.push_back("rank " + std::to_string(own.number) + " uses a communicator that is in progress");
    return Result::kInvalidUsage;
  }
  const bool whole = part.kind == Kind::kSend || part.kind == Kind::kReceive || part.kind == Kind::kBroadcast;
  if (whole && (part.peer < 0 || part.peer >= static_cast<int>(part.ranks()))) return Result::kInvalidArgument;
  if (group_depth == 0) return PostOrCapture({std::move(part)}, LateNcclTable::StreamOf(stream));
  own.grouped_stream = LateNcclTable::StreamOf(stream);
  own.grouped.push_back(std::move(part));
  return Result::kSuccess;
}

LateNccl::Result LateNccl::EndGroup() {
  if (group_depth == 0) return Result::kInvalidUsage;
  if (--group_depth > 0) return Result::kSuccess;
  const Lock lock(mutex_);
  Rank& own = Own();
  std::vector<Part> parts = std::exchange(own.grouped, {});
  return parts.empty() ? Result::kSuccess : PostOrCapture(std::move(parts), own.grouped_stream);
}

LateNccl::Result LateNccl::PostOrCapture(std::vector<Part> parts, Stream stream) {
  PretendGraph* const graph = PretendGraph::Current();
  if (graph == nullptr) return Post(std::move(parts), stream);
  graph->AddWork([this, parts = std::move(parts), stream] {
    const Lock lock(mutex_);
    if (Post(parts, stream) == Result::kInProgress) parts[0].comm->in_progress = 0;
  });
  return Result::kSuccess;
}

LateNccl::Result LateNccl::Post(std::vector<Part> parts, Stream stream) {
  Rank& own = Own();
  NcclComm* const comm = parts[0].comm;
  auto op = std::make_shared<Op>();
  op->rank = &own;
  op->number = ++comm->calls;
  op->aside = stream == kSide;
  op->parts = std::move(parts);
  ++calls_;
  ++own.calls;
  op->after = own.waits_for[stream];
  if (own.last[stream] != nullptr) op->after.push_back(own.last[stream]);
  try {
    const auto unknown = [&](const Range& range) {
      return range.bytes > 0 && PretendMemory::Instance().LastCall(range.begin) > own.operators_waited_for;
    };
    for (const Part& part : op->parts) {
      // Whether an operator for which the side stream does not wait has used the memory.
      const bool used = unknown(part.Read()) || unknown(part.Written());
      if (stream == kSide && used) op->spoiled = true;
    }
  } catch (const c10::Error&) {
    comm->text = "an address of no memory of the device";
    return Result::kInvalidArgument;
  }
  Prepare(*op);
  if (op->spoiled) Tell(*op, "the side stream does not wait for what computes or uses its memory");
  own.last[stream] = op;
  if (stream == kSide) own.waits_for[kSide].clear();
  pending_.push_back(op);
  if (faults_.breaks_call == own.calls && faults_.breaks_rank == own.number) {
    comm->error = Result::kRemoteError;
    comm->text = "rank " + std::to_string(own.number) + " lost its connection";
    broken_ = true;
  }
  for (size_t i = 0; i < op->parts.size(); ++i) Match(op, i);
  comm->in_progress = 1;
  changed_.notify_all();
  return Result::kInProgress;
}

// Fills receive buffers with NaN and saves the contents of send buffers.
void LateNccl::Prepare(Op& op) {
  for (Part& part : op.parts) {
    part.op = &op;
    const auto in_use = [&](const Range& range) {
      const auto overlaps = [&](const Part& other) {
        return &other != &part && (other.Read().Overlaps(range) || other.Written().Overlaps(range));
      };
      return std::ranges::any_of(op.parts, overlaps) || std::ranges::any_of(pending_, [&](const auto& other) {
               return other->rank == op.rank && std::ranges::any_of(other->parts, overlaps);
             });
    };
    const Range to = part.Written(), from = part.Read();
    if (to.bytes > 0 && !to.Overlaps(from) && !in_use(to)) FillWithNan(part.to, to.bytes);
    if (part.kind == Kind::kSend && !in_use(from)) part.sent.assign(from.begin, from.begin + from.bytes);
  }
}

void LateNccl::Match(const std::shared_ptr<Op>& op, size_t index) {
  Part& part = op->parts[index];
  Group& group = part.group();
  if (part.kind == Kind::kSend || part.kind == Kind::kReceive) {
    const bool sends = part.kind == Kind::kSend;
    auto& [from, to] =
        group.channels[sends ? std::pair(part.comm->rank, part.peer) : std::pair(part.peer, part.comm->rank)];
    std::vector<Part*>& own = sends ? from : to;
    part.index = own.size();
    own.push_back(&part);
    if (const Part* other = group.Counterpart(part)) CheckAlike(part, *other);
    return;
  }
  part.index = static_cast<size_t>(part.comm->collectives++);
  if (group.collectives.size() <= part.index) group.collectives.resize(part.index + 1);
  std::vector<Part*>& others = group.collectives[part.index];
  if (!others.empty()) CheckAlike(part, *others[0]);
  others.push_back(&part);
}

std::string LateNccl::Name(const Part& part) {
  static constexpr const char* kNames[] = {"send",           "receive",    "all-reduce",
                                           "reduce-scatter", "all-gather", "broadcast"};
  return "rank " + std::to_string(part.rank().number) + ", call " + std::to_string(part.op->number) + " (" +
         kNames[static_cast<int>(part.kind)] + " of " + std::to_string(part.count) + " " +
         c10::toString(DtypeOf(part.type)) + (part.peer >= 0 ? " with " + std::to_string(part.peer) : "") + ")";
}

void LateNccl::Tell(const Op& op, const std::string& what) { problems_.push_back(Name(op.parts[0]) + ": " + what); }

void LateNccl::CheckAlike(const Part& one, const Part& other) {
  const bool collective = one.kind != Kind::kSend && one.kind != Kind::kReceive;
  if (one.count == other.count && one.type == other.type &&
      (!collective || (one.kind == other.kind && one.peer == other.peer))) {
    return;
  }
  Break(Name(one) + " does not fit " + Name(other));
}

void LateNccl::Demand(Op& op) {
  if (op.demanded) return;
  op.demanded = true;
  for (const std::shared_ptr<Op>& before : op.after) Demand(*before);
}

bool LateNccl::AreDone(const std::vector<std::shared_ptr<Op>>& ops) {
  return std::ranges::all_of(ops, [](const auto& op) { return op->done; });
}

// Makes all possible transfers: those for which both ends wait, or, with `undemanded`, any one.
bool LateNccl::Advance(bool undemanded) {
  bool made = false;
  for (bool again = !broken_; again;) {
    again = false;
    for (const std::shared_ptr<Op>& op : pending_) {
      if (!op->IsReady()) continue;
      for (Part& part : op->parts) again = (!part.done && TryPart(part, undemanded)) || again;
      if (undemanded && again) break;
    }
    FinishOps();
    made = made || again;
    // With `undemanded`, makes only one transfer, then lets the ranks continue.
    if (undemanded && made) break;
  }
  if (made) changed_.notify_all();
  return made;
}

void LateNccl::FinishOps() {
  for (const std::shared_ptr<Op>& op : pending_) {
    op->done = std::ranges::all_of(op->parts, [](const Part& part) { return part.done; });
    if (!op->done) continue;
    op->after.clear();
    for (Part& part : op->parts) part.sent = {};
    for (void* block : std::exchange(op->blocks, {})) PretendMemory::Instance().Free(block);
  }
  // Done operations are kept because their groups still refer to the parts, for comparison with a counterpart.
  std::erase_if(pending_, [this](const auto& op) {
    if (!op->done) return false;
    done_.push_back(op);
    return true;
  });
}

bool LateNccl::TryPart(Part& part, bool undemanded) {
  const auto may = [&](const Part& of) { return of.op->IsReady() && (undemanded || of.op->demanded); };
  if (!may(part)) return false;
  if (part.kind == Kind::kSend || part.kind == Kind::kReceive) {
    Part* const other = part.group().Counterpart(part);
    if (other == nullptr || !may(*other)) return false;
    part.kind == Kind::kSend ? Transfer(part, *other) : Transfer(*other, part);
    return true;
  }
  std::vector<Part*>& all = part.group().collectives[part.index];
  if (all.size() < part.ranks() || !std::ranges::all_of(all, [&](const Part* one) { return may(*one); })) return false;
  std::ranges::sort(all, {}, [](const Part* one) { return one->comm->rank; });
  Make(all);
  return true;
}

void LateNccl::Transfer(Part& send, Part& receive) {
  const int64_t bytes = BytesOf(send.count, send.type);
  if (!send.sent.empty() && std::memcmp(send.sent.data(), send.from, send.sent.size()) != 0) {
    Tell(*send.op, "what is sent was changed before it was sent");
  }
  std::memcpy(receive.to, send.from, static_cast<size_t>(bytes));
  if (send.op->spoiled || receive.op->spoiled) FillWithNan(receive.to, bytes);
  send.done = receive.done = true;
}

// Executes a collective. `parts` holds one part of each rank, in rank order. Sums begin with rank 1, because nothing
// may depend on the order of addition.
void LateNccl::Make(std::vector<Part*>& parts) {
  const size_t ranks = parts.size(), count = parts[0]->count;
  const NcclType type = parts[0]->type;
  const auto sum = [&](size_t begin) {
    at::Tensor total;
    for (size_t i = 0; i < ranks; ++i) {
      const char* from = static_cast<const char*>(parts[(i + 1) % ranks]->from) + BytesOf(begin, type);
      total = total.defined() ? total.add_(View(from, count, type)) : View(from, count, type).clone();
    }
    return total;
  };
  std::vector<at::Tensor> results(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    switch (parts[0]->kind) {
      case Kind::kSum:
        results[i] = i == 0 ? sum(0) : results[0];
        break;
      case Kind::kReduceScatter:
        results[i] = sum(i * count);
        break;
      case Kind::kBroadcast:
        results[i] = View(parts[static_cast<size_t>(parts[0]->peer)]->from, count, type).clone();
        break;
      default: {
        std::vector<at::Tensor> gathered;
        for (const Part* part : parts) gathered.push_back(View(part->from, count, type));
        results[i] = i == 0 ? at::cat(gathered) : results[0];
      }
    }
  }
  for (size_t i = 0; i < ranks; ++i) {
    View(parts[i]->to, static_cast<size_t>(results[i].numel()), type).copy_(results[i]);
    parts[i]->done = true;
  }
  for (const Part* part : parts) {
    if (!part->op->spoiled) continue;
    for (const Part* other : parts) FillWithNan(other->to, other->Written().bytes);
  }
}

bool LateNccl::AllWait() const {
  return std::ranges::all_of(ranks_, [](const auto& rank) {
    return rank->ended || ((rank->sleeps || rank->polls > kPollsThatWait) && !AreDone(rank->awaits));
  });
}

void LateNccl::Break(const std::string& text) {
  if (broken_) return;
  broken_ = true;
  problems_.push_back(text);
  for (const auto& comm : comms_) {
    if (faults_.says_nothing || comm->error != Result::kSuccess) continue;
    comm->error = Result::kInvalidUsage;
    comm->text = text;
  }
  changed_.notify_all();
}

void LateNccl::BlameAll() {
  std::string text = "all ranks wait for each other";
  for (const auto& rank : ranks_) {
    const auto waits =
        std::ranges::find_if(pending_, [&](const auto& op) { return op->rank == rank.get() && op->IsReady(); });
    if (waits != pending_.end()) {
      const auto left = std::ranges::find_if((*waits)->parts, [](const Part& part) { return !part.done; });
      text += "; " + Name(*left);
    } else {
      text += "; rank " + std::to_string(rank->number) + (rank->ended ? " has ended" : " waits for nothing of NCCL's");
    }
  }
  Break(text);
}

bool LateNccl::Await(Lock& lock, Rank& rank, const std::vector<std::shared_ptr<Op>>& ops) {
  for (const std::shared_ptr<Op>& op : ops) Demand(*op);
  rank.awaits = ops;
  rank.sleeps = true;
  changed_.notify_all();
  const auto begin = std::chrono::steady_clock::now();
  while (!AreDone(ops) && !broken_) {
    if (Advance(false)) continue;
    const auto passed = std::chrono::steady_clock::now() - begin;
    const bool all = AllWait();
    if ((all || passed > kElsewhere) && Advance(true)) continue;
    if (all || passed > kTooLong) {
      BlameAll();
    } else {
      changed_.wait_for(lock, kElsewhere);
    }
  }
  rank.sleeps = false;
  return AreDone(ops);
}

void LateNccl::BeforeOperator() {
  LateNcclTable::OwnRank& own = LateNcclTable::Own();
  if (own.rank == nullptr) return;
  Lock lock(mutex_);
  Rank& rank = *own.rank;
  rank.polls = 0;
  std::vector<std::shared_ptr<Op>> before = rank.waits_for[kCompute];
  if (rank.last[kCompute] != nullptr) before.push_back(rank.last[kCompute]);
  if (!AreDone(before)) Await(lock, rank, before);
  if (AreDone(before)) rank.waits_for[kCompute].clear();
}

void LateNccl::OnUse(const void* memory, int64_t bytes) {
  const LateNcclTable::OwnRank& own = LateNcclTable::Own();
  if (own.rank == nullptr) return;
  const Lock lock(mutex_);
  if (broken_) return;
  const Range used{static_cast<const char*>(memory), bytes};
  for (const std::shared_ptr<Op>& op : pending_) {
    if (op->rank != own.rank || op->reported) continue;
    if (std::ranges::any_of(op->parts, [&](const Part& part) { return !part.done && part.Written().Overlaps(used); })) {
      op->reported = true;
      Tell(*op, "an operator uses what it transfers without waiting for it");
    }
  }
}

bool LateNccl::TakesOver(void* block) {
  const Lock lock(mutex_);
  const Range freed{static_cast<const char*>(block), PretendMemory::Instance().BytesOf({{block, 0}})};
  for (const std::shared_ptr<Op>& op : pending_) {
    const auto uses = [&](const Part& part) { return part.Read().Overlaps(freed) || part.Written().Overlaps(freed); };
    if (std::ranges::none_of(op->parts, uses)) continue;
    if (op->aside) Tell(*op, "what it transfers was freed without waiting for it");
    // The work on a rank's current stream executes in order, so the last operation that uses the block frees it.
    const auto last = std::ranges::find_if(pending_.rbegin(), pending_.rend(), [&](const auto& other) {
      return other->rank == op->rank && std::ranges::any_of(other->parts, uses);
    });
    (*last)->blocks.push_back(block);
    return true;
  }
  return false;
}

void LateNccl::LetWait(void* stream, void* other) {
  if (PretendGraph* const graph = PretendGraph::Current()) {
    graph->AddWork([this, stream, other] { Order(stream, other); });
  } else {
    Order(stream, other);
  }
}

void LateNccl::Order(void* stream, void* other) {
  const Lock lock(mutex_);
  Rank& own = Own();
  const Stream waits = LateNcclTable::StreamOf(stream), first = LateNcclTable::StreamOf(other);
  if (own.last[first] != nullptr) own.waits_for[waits].push_back(own.last[first]);
  for (const std::shared_ptr<Op>& op : pending_) {
    if (op->rank == &own && waits == kCompute && first == kSide) op->aside = false;
  }
  if (waits == kSide) {
    own.operators_waited_for = PretendDeviceCalls();
    own.waits_for[kSide].insert(own.waits_for[kSide].end(), own.waits_for[kCompute].begin(),
                                own.waits_for[kCompute].end());
  }
}

kernels::DeviceMark* LateNccl::RecordMark() {
  const std::unique_ptr<kernels::DeviceMark, void (*)(kernels::DeviceMark*) noexcept> checked(before_.record_mark(0),
                                                                                              before_.destroy_mark);
  auto mark = std::make_unique<Mark>();
  const Lock lock(mutex_);
  const LateNcclTable::OwnRank& own = LateNcclTable::Own();
  if (own.rank != nullptr) {
    mark->after = own.rank->waits_for[kCompute];
    if (own.rank->last[kCompute] != nullptr) mark->after.push_back(own.rank->last[kCompute]);
  }
  return mark.release();
}

bool LateNccl::IsReached(const Mark& mark) {
  const Lock lock(mutex_);
  if (AreDone(mark.after)) return true;
  Rank* const rank = LateNcclTable::Own().rank;
  if (rank == nullptr) return false;
  ++rank->polls;
  rank->awaits = mark.after;
  for (const std::shared_ptr<Op>& op : mark.after) Demand(*op);
  Advance(false);
  if (!AreDone(mark.after) && !broken_ && AllWait() && !Advance(true)) BlameAll();
  return AreDone(mark.after);
}

void LateNccl::WaitFor(const Mark& mark) {
  Rank* const rank = LateNcclTable::Own().rank;
  if (rank == nullptr) return;
  Lock lock(mutex_);
  TORCH_CHECK(Await(lock, *rank, mark.after), "pretended error: the device hangs");
}

}  // namespace tessera
