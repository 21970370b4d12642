// A client, a scheduler and a worker in one: random but valid calls of a job store, and word of what was acknowledged.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "server/jobs/job_store.h"
#include "tests/jobs/job_oracle.h"

namespace tessera {

// Between the sizes of the images that a workload makes: some are committed with their tasks, others are not.
inline constexpr uint64_t kWorkloadCommittedBytes = 700;

// A small valid request of `count` images.
server::JobRequest SmallRequest(int32_t count);

// Used by one thread; several may use one store, each with tasks of its own.
class JobWorkload {
 public:
  JobWorkload(server::JobStore& store, uint64_t seed, std::function<void(const Ack&)> hear);

  // A task that is queued already.
  void Adopt(uint64_t task, const std::string& job);

  // One random call. False when the storage failed.
  bool Step();

  // Brings every task to its end. Nothing may fail.
  bool Drain();

 private:
  struct Known {
    uint64_t task = 0;
    std::string job;
  };
  struct Running {
    server::TaskAttempt attempt;
    std::string job;
  };

  bool Submit();
  bool Claim();
  bool Finish();
  bool Fail();
  bool GiveBack();
  bool Die();
  bool Cancel();
  bool Settle();
  Running TakeRunning();
  void Forget(const std::string& job);

  server::JobStore& store_;
  std::mt19937_64 random_;
  const std::function<void(const Ack&)> hear_;
  std::deque<Known> queued_;
  std::vector<Running> running_;
};

}  // namespace tessera
