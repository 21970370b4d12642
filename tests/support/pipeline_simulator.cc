#include "tests/support/pipeline_simulator.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

using Kind = parallel::StageOp::Kind;

struct Pass {
  int64_t job;
  int step;
  parallel::PatchRange patches;
  auto Key() const { return std::tuple(job, step, patches.begin, patches.end); }
  bool operator==(const Pass&) const = default;
  bool operator<(const Pass& other) const { return Key() < other.Key(); }
};

Pass PassOf(const parallel::StageOp& op) { return {op.job, op.step, op.patches}; }

std::string Name(const parallel::StageOp& op) {
  static constexpr std::array<const char*, 9> kNames = {"compute",        "send state",    "receive state",
                                                        "send skips",     "receive skips", "send result",
                                                        "receive result", "barrier",       "flush"};
  return absl::StrCat(kNames[static_cast<size_t>(op.kind)], " of job ", op.job, " step ", op.step, " patches ",
                      op.patches.begin, "-", op.patches.end, op.peer < 0 ? "" : absl::StrCat(" with stage ", op.peer));
}

bool IsSend(Kind kind) { return kind == Kind::kSendState || kind == Kind::kSendSkips || kind == Kind::kSendResult; }
bool IsReceive(Kind kind) {
  return kind == Kind::kReceiveState || kind == Kind::kReceiveSkips || kind == Kind::kReceiveResult;
}

bool Matches(const parallel::StageOp& send, const parallel::StageOp& receive) {
  return static_cast<int>(receive.kind) == static_cast<int>(send.kind) + 1 && PassOf(send) == PassOf(receive) &&
         send.blocks == receive.blocks && send.slot == receive.slot;
}

// A channel from one stage to another. Holds one message.
struct Channel {
  struct InFlight {
    parallel::StageOp send;
    int64_t since;
  };
  std::optional<InFlight> message;
  int64_t free_since = 0;
};

class Simulation {
 public:
  Simulation(const parallel::Pipeline& pipeline, std::span<const parallel::PipeStep> stream,
             const std::vector<std::vector<parallel::StageOp>>& plans, bool buffered)
      : pipeline_(pipeline), plans_(plans), buffered_(buffered), stages_(pipeline.stages()) {
    for (const parallel::PipeStep& step : stream) {
      steps_.insert({step.job, step.step});
      if (step.barrier) barriers_.insert({step.job, step.step});
      for (int patch = 0; patch < (step.whole ? 1 : pipeline.patches); ++patch) {
        expected_.push_back(
            {step.job, step.step,
             step.whole ? parallel::PatchRange{0, pipeline.patches} : parallel::PatchRange{patch, patch + 1}});
      }
    }
  }

  absl::StatusOr<SimulatedRun> Run() {
    stage_.resize(stages_);
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < stages_; ++s) {
        while (stage_[s].next < plans_[s].size() && error_.empty() && Execute(s)) progress = true;
        if (!error_.empty()) return absl::InternalError(error_);
      }
    }
    CheckEnd();
    if (!error_.empty()) return absl::InternalError(error_);
    SimulatedRun run;
    for (const Stage& stage : stage_) run.end = std::max(run.end, stage.time);
    for (const Stage& stage : stage_) {
      run.idle.push_back(run.end - stage.busy);
      run.most_skips_held.push_back(stage.most_skips);
    }
    return run;
  }

 private:
  struct Stage {
    size_t next = 0;  // index into its plan
    int64_t time = 0, busy = 0;
    size_t computed = 0;  // number of passes, in expected order
    std::optional<Pass> state;
    std::set<std::pair<Pass, int>> skips;  // received, by pass and block
    int skip_messages = 0, most_skips = 0;
    std::set<std::pair<Kind, int>> sent;                       // by the last computed pass: message and receiver
    std::map<std::pair<int64_t, int>, std::set<int>> results;  // stage 0: patches by job and step
  };

  void Fail(int s, const parallel::StageOp& op, const std::string& reason) {
    error_ = absl::StrCat("stage ", s, ", ", Name(op), ": ", reason);
  }

  // Returns false if the operation must wait, or is wrong.
  bool Execute(int s) {
    const parallel::StageOp& op = plans_[s][stage_[s].next];
    bool done = true;
    if (op.kind == Kind::kCompute) {
      Compute(s, op);
    } else if (IsSend(op.kind)) {
      done = Send(s, op);
    } else if (IsReceive(op.kind)) {
      done = Receive(s, op);
    } else {
      CheckDrained(s, op);
    }
    if (done) ++stage_[s].next;
    return done && error_.empty();
  }

  void Compute(int s, const parallel::StageOp& op) {
    Stage& stage = stage_[s];
    const Pass pass = PassOf(op);
    if (stage.computed == expected_.size() || !(expected_[stage.computed] == pass)) {
      return Fail(s, op, "is not the pass whose turn it is");
    }
    CheckSent(s, op);
    if (s > 0 && stage.state != pass) return Fail(s, op, "its state was not received");
    if (s == 0 && !MayStart(pass)) return Fail(s, op, "the prediction it starts from was not received");
    for (const parallel::LongSkip& skip : pipeline_.skips) {
      if (pipeline_.StageOf(skip.to) != s || pipeline_.StageOf(skip.from) == s) continue;
      if (!stage.skips.contains({pass, skip.from})) {
        return Fail(s, op, absl::StrCat("block ", skip.to, " was not given the skip of block ", skip.from));
      }
    }
    std::set<int> sources;
    for (const parallel::LongSkip& skip : pipeline_.skips) {
      if (pipeline_.StageOf(skip.to) != s || pipeline_.StageOf(skip.from) == s) continue;
      stage.skips.erase({pass, skip.from});
      sources.insert(pipeline_.StageOf(skip.from));
    }
    stage.skip_messages -= static_cast<int>(sources.size());
    stage.state.reset();
    stage.sent.clear();
    ++stage.computed;
    stage.time += op.patches.count();
    stage.busy += op.patches.count();
    if (stages_ == 1) AddResult(pass);
  }

  // Returns whether stage 0 has the input of `pass`: the start of its job, or the predictions of the previous step.
  bool MayStart(const Pass& pass) {
    if (!steps_.contains({pass.job, pass.step - 1})) return true;
    const std::set<int>& have = stage_[0].results[{pass.job, pass.step - 1}];
    if (barriers_.contains({pass.job, pass.step - 1})) return static_cast<int>(have.size()) == pipeline_.patches;
    for (int patch = pass.patches.begin; patch < pass.patches.end; ++patch) {
      if (!have.contains(patch)) return false;
    }
    return true;
  }

  void AddResult(const Pass& pass) {
    for (int patch = pass.patches.begin; patch < pass.patches.end; ++patch) {
      if (!stage_[0].results[{pass.job, pass.step}].insert(patch).second) {
        error_ = absl::StrCat("stage 0 received the result of step ", pass.step, " patch ", patch, " twice");
      }
    }
  }

  // Checks that the last computed pass has sent everything that other stages need.
  void CheckSent(int s, const parallel::StageOp& op) {
    if (stage_[s].computed == 0 || stages_ == 1) return;
    std::set<std::pair<Kind, int>> due;
    due.insert(s + 1 < stages_ ? std::pair(Kind::kSendState, s + 1) : std::pair(Kind::kSendResult, 0));
    for (const parallel::LongSkip& skip : pipeline_.skips) {
      const int to = pipeline_.StageOf(skip.to);
      if (pipeline_.StageOf(skip.from) == s && to != s) due.insert({Kind::kSendSkips, to});
    }
    if (stage_[s].sent != due) Fail(s, op, "the pass before it did not send what it had to, and where");
  }

  bool Send(int s, const parallel::StageOp& op) {
    Stage& stage = stage_[s];
    if (stage.computed == 0 || !(expected_[stage.computed - 1] == PassOf(op))) {
      return Fail(s, op, "is not about the pass just computed"), false;
    }
    Channel& channel = channels_[{s, op.peer}];
    if (op.peer < 0 || op.peer >= stages_ || op.peer == s) return Fail(s, op, "has no such peer"), false;
    if (buffered_) {
      if (channel.message) return false;
      stage.time = std::max(stage.time, channel.free_since);
      channel.message = {op, stage.time};
    } else {
      Stage& peer = stage_[op.peer];
      if (peer.next == plans_[op.peer].size()) return false;
      const parallel::StageOp& receive = plans_[op.peer][peer.next];
      if (!IsReceive(receive.kind) || receive.peer != s) return false;
      if (!Matches(op, receive)) return Fail(op.peer, receive, "what arrives is: " + Name(op)), false;
      stage.time = peer.time = std::max(stage.time, peer.time);
      Take(op.peer, receive);
      ++peer.next;
    }
    if (!stage.sent.insert({op.kind, op.peer}).second) Fail(s, op, "is sent twice");
    return true;
  }

  bool Receive(int s, const parallel::StageOp& op) {
    if (!buffered_) return false;  // its sender completes it
    Stage& stage = stage_[s];
    Channel& channel = channels_[{op.peer, s}];
    if (!channel.message) return false;
    const Channel::InFlight message = *channel.message;
    if (!Matches(message.send, op)) return Fail(s, op, "what arrives is: " + Name(message.send)), false;
    channel.message.reset();
    stage.time = std::max(stage.time, message.since);
    channel.free_since = stage.time;
    Take(s, op);
    return true;
  }

  void Take(int s, const parallel::StageOp& op) {
    Stage& stage = stage_[s];
    if (op.kind == Kind::kReceiveResult) return s == 0 ? AddResult(PassOf(op)) : Fail(s, op, "is for stage 0");
    if (op.kind == Kind::kReceiveState) {
      if (stage.state) return Fail(s, op, "the state before it was not used");
      stage.state = PassOf(op);
      return;
    }
    for (const int block : op.blocks) {
      if (!stage.skips.insert({PassOf(op), block}).second) return Fail(s, op, "came before");
    }
    stage.most_skips = std::max(stage.most_skips, ++stage.skip_messages);
  }

  // Checks that a flush or a barrier finds no unfinished work of the step.
  void CheckDrained(int s, const parallel::StageOp& op) {
    Stage& stage = stage_[s];
    if (stage.state || !stage.skips.empty()) return Fail(s, op, "something received was not used");
    if (stage.computed == 0 || expected_[stage.computed - 1].step != op.step ||
        expected_[stage.computed - 1].job != op.job || expected_[stage.computed - 1].patches.end != pipeline_.patches) {
      return Fail(s, op, "the step is not over");
    }
    CheckSent(s, op);
    if (s == 0 && static_cast<int>(stage.results[{op.job, op.step}].size()) != pipeline_.patches) {
      Fail(s, op, "results are missing");
    }
  }

  void CheckEnd() {
    std::vector<std::string> waiting;
    for (int s = 0; s < stages_; ++s) {
      if (stage_[s].next < plans_[s].size()) {
        waiting.push_back(absl::StrCat("stage ", s, ": ", Name(plans_[s][stage_[s].next])));
      }
    }
    if (!waiting.empty()) {
      error_ = absl::StrCat("deadlock: ", absl::StrJoin(waiting, "; "));
      return;
    }
    for (const auto& [ends, channel] : channels_) {
      if (channel.message) error_ = absl::StrCat("never received: ", Name(channel.message->send));
    }
    for (int s = 0; s < stages_; ++s) {
      if (stage_[s].computed != expected_.size()) error_ = absl::StrCat("stage ", s, " did not compute every pass");
      if (plans_[s].empty() || plans_[s].back().kind != Kind::kFlush)
        error_ = absl::StrCat("stage ", s, " has no last flush");
    }
    for (const Pass& pass : expected_) {
      if (static_cast<int>(stage_[0].results[{pass.job, pass.step}].size()) != pipeline_.patches) {
        error_ = absl::StrCat("stage 0 lacks results of step ", pass.step);
      }
    }
  }

  const parallel::Pipeline& pipeline_;
  const std::vector<std::vector<parallel::StageOp>>& plans_;
  const bool buffered_;
  const int stages_;
  std::vector<Pass> expected_;                          // of every stage, in order
  std::set<std::pair<int64_t, int>> steps_, barriers_;  // by job and step
  std::vector<Stage> stage_;
  std::map<std::pair<int, int>, Channel> channels_;
  std::string error_;
};

}  // namespace

absl::StatusOr<SimulatedRun> SimulatePipeline(const parallel::Pipeline& pipeline,
                                              std::span<const parallel::PipeStep> stream,
                                              const std::vector<std::vector<parallel::StageOp>>& plans, bool buffered) {
  return Simulation(pipeline, stream, plans, buffered).Run();
}

}  // namespace tessera
