// What a run of steps computed, block by block, in so few numbers that it can be kept: to find out at which step, block
// and rank two runs part. One file a rank, in a folder of the run.
//
// Of the state of one token after one block two numbers are kept: the square of its length, and its product with a
// fixed vector of random signs. Both depend on the token's values alone and not on who holds it, so runs of different
// layouts can be compared. For two states a and b the square of the difference of their products has the mean |a − b|²
// over all vectors of signs; over many tokens that tells the distance. LibTorch-free.
#pragma once

#include <compare>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::control {

struct TokenDigest {
  double square = 0;   // of the length
  double product = 0;  // with the signs
};

// Where in a run: the order is that of computing.
struct StatePlace {
  uint64_t job = 0;
  int32_t step = 0;    // of the job, from 0
  int32_t branch = 0;  // of its guidance
  int32_t block = 0;   // −1: the embedded patches and text; as many as there are blocks: the head's output
  bool text = false;   // else of the image

  auto operator<=>(const StatePlace&) const = default;
};

// Writes one rank's file. Used by one thread.
class StepRecordWriter {
 public:
  // `folder` exists. AlreadyExists where another run has been recorded in it; else what errno says.
  static absl::StatusOr<std::unique_ptr<StepRecordWriter>> Create(const std::string& folder, int rank);

  // Tokens of consecutive global indices from `first`. Throws std::runtime_error when the file cannot be written.
  void Write(const StatePlace& place, int64_t first, std::span<const TokenDigest> tokens);

 private:
  explicit StepRecordWriter(std::ofstream file) : file_(std::move(file)) {}

  std::ofstream file_;
};

// The first place, in the order of steps and blocks, where a rank is farther from the reference than it may be.
struct Parting {
  StatePlace place;
  int rank = 0;  // the farthest there
  double distance = 0;
};

struct RecordComparison {
  int64_t states = 0;    // that were compared, one for each place and rank
  double farthest = 0;   // of them all; infinite for a number that is none
  bool complete = true;  // the run has all states that the reference has
  std::optional<Parting> parting;
};

// About ‖a − b‖ / ‖b‖ over the tokens of each rank at each place of `run`, against `reference`, both folders of
// records. A run that broke off is compared as far as it went. InvalidArgument for files that are no records, or where
// the run has states that the reference has not.
absl::StatusOr<RecordComparison> CompareRecords(const std::string& run, const std::string& reference, double bound);

}  // namespace tessera::control
