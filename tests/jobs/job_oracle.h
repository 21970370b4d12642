// JobOracle records what a job store has acknowledged, and checks that it kept every promise.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "server/jobs/job_store.h"

namespace tessera {

// One acknowledgement, which a child process can write as a line.
struct Ack {
  char kind = 0;  // S submitted, D done, F failed, C cancelled
  uint64_t task = 0;
  int32_t attempt = 0;  // of D
  std::string job;      // of S
};

std::string AckLine(const Ack& ack);
// Returns false if the line is invalid, such as one cut short by the death of its writer.
bool ParseAck(absl::string_view line, Ack* ack);

inline constexpr char kOracleTenant[] = "oracle";

// What a workload reports as the usage of each image that it finishes, and of each task that it fails.
inline constexpr int64_t kFinishedSteps = 4, kFailedSteps = 1;

// Returns the image file of a task's attempt, different for each attempt.
std::string ImageBytesOf(const server::TaskAttempt& attempt);

struct OracleTally {
  int64_t acked = 0, done = 0, failed = 0, cancelled = 0;
  int64_t lost = 0;        // acknowledged but missing, unfinished, or with another end than acknowledged
  int64_t duplicated = 0;  // finished twice
  int64_t torn = 0;        // done without a complete image of one attempt
  int64_t miscounted = 0;  // images and steps by which the totals of usage differ from the tasks

  void Add(const OracleTally& other);
  bool clean() const { return lost == 0 && duplicated == 0 && torn == 0 && miscounted == 0; }
  std::string Line() const;
};

class JobOracle {
 public:
  void Hear(const Ack& ack);

  // Call it at the end, when every task should have ended.
  OracleTally Judge(server::JobStore& store) const;

 private:
  struct Promise {
    std::string job;
    int finishes = 0;
    bool failed = false;
    bool cancelled = false;
  };
  std::map<uint64_t, Promise> promises_;
};

}  // namespace tessera
