// JobWorkload acts as a client, a scheduler and a worker at once: it makes random but valid calls to a job store and
// reports what was acknowledged.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "server/jobs/job_store.h"
#include "tests/jobs/job_oracle.h"

namespace tessera {

// Between the sizes of the images that a workload makes, so that some are committed with their tasks and others are
// not.
inline constexpr uint64_t kWorkloadCommittedBytes = 700;

// Returns a small valid request of `count` images.
server::JobRequest SmallRequest(int32_t count);

// For one thread. Several workloads may use one store, each with separate tasks.
class JobWorkload {
 public:
  JobWorkload(server::JobStore& store, uint64_t seed, std::function<void(const Ack&)> hear);

  // Adds a task that is already queued.
  void Adopt(uint64_t task, const std::string& job);

  // Makes one random call. False if the storage failed.
  bool Step();

  // Runs every task to its end. No call may fail.
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
