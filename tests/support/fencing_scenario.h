// Runs a scenario in which a node's process is replaced by a later one, while its connection still seems alive and
// sends messages.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/plan/mesh.h"
#include "parallel/segment/mesh_groups.h"
#include "server/nodes/node_registry.h"

namespace tessera {

// Records what the registry sends.
class RecordingLink final : public server::NodeLink {
 public:
  void Send(internal::ToNode message) override {
    const std::lock_guard lock(mutex_);
    sent_.push_back(std::move(message));
  }
  void Cancel() override {}
  std::vector<internal::ToNode> sent() {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  std::mutex mutex_;
  std::vector<internal::ToNode> sent_;
};

inline internal::NodeHello HelloOf(const std::string& name, uint64_t incarnation) {
  internal::NodeHello hello;
  hello.set_name(name);
  hello.set_version("tessera of the test");
  hello.set_incarnation(incarnation);
  hello.add_devices("cpu:0");
  hello.set_processors(1);
  return hello;
}

inline server::NodeRegistryOptions RegistryOptions() {
  return {.version = "tessera of the test", .join_wait = absl::Milliseconds(1), .log = [](const base::LogLine&) {}};
}

inline server::RemoteRanksRequest OneRankOn(const std::string& device) {
  return {.segment = *parallel::HostSegment::CreateInHeap({.ranks = 1}), .layout = "serial", .devices = {device}};
}

// Returns whether the later process's rank still counts as running after the replaced process has reported the end of
// the rank of the same number.
inline bool ASuccessorsRankOutlivesItsPredecessorsWord() {
  server::NodeRegistry registry(RegistryOptions());
  const uint64_t before = *registry.Admit(HelloOf("node-a", 1), std::make_shared<RecordingLink>());
  const auto replaced = registry.Start(OneRankOn("node-a/cpu:0"));
  const auto link = std::make_shared<RecordingLink>();
  const uint64_t epoch = *registry.Admit(HelloOf("node-a", 2), link);
  auto started = registry.Start(OneRankOn("node-a/cpu:0"));
  const std::unique_ptr<server::RankProcess> rank = std::move((*started)->TakeProcesses()[0]);
  internal::FromNode message;
  message.set_epoch(before);
  message.mutable_ended()->set_rank(1);
  message.mutable_ended()->set_state("ended with exit code 0");
  const bool heard = registry.Receive("node-a", message).ok();
  const bool lives = !rank->WaitForExit(absl::ZeroDuration());
  registry.Lose("node-a", epoch, "the test ends");
  return heard && lives;
}

}  // namespace tessera
