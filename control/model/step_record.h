// StepRecordWriter records what a run of steps computed, block by block, in few enough numbers to store; CompareRecords
// finds the step, block and rank at which two runs diverge. A run's folder has one file per rank.
//
// For the state of one token after one block, two numbers are stored: its squared norm, and its product with a fixed
// vector of random signs. Both depend on the token's values only and not on the rank that holds it, so runs of
// different layouts can be compared. For two states a and b, the squared difference of their products has the mean |a −
// b|² over all sign vectors; averaged over many tokens, it estimates the distance. LibTorch-free.
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
  double square = 0;   // squared norm
  double product = 0;  // with the sign vector
};

// A place in a run. Places are ordered as they are computed.
struct StatePlace {
  uint64_t job = 0;
  int32_t step = 0;    // of the job, from 0
  int32_t branch = 0;  // guidance branch
  int32_t block = 0;   // −1: the embedded patches and text; the number of blocks: the head's output
  bool text = false;   // text tokens; otherwise image tokens

  auto operator<=>(const StatePlace&) const = default;
};

// Writes one rank's file. Used by one thread.
class StepRecordWriter {
 public:
  // `folder` must exist. AlreadyExists if it contains the record of another run; otherwise an error from errno.
  static absl::StatusOr<std::unique_ptr<StepRecordWriter>> Create(const std::string& folder, int rank);

  // Writes the digests of tokens with consecutive global indices from `first`. Throws std::runtime_error if the file
  // cannot be written.
  void Write(const StatePlace& place, int64_t first, std::span<const TokenDigest> tokens);

 private:
  explicit StepRecordWriter(std::ofstream file) : file_(std::move(file)) {}

  std::ofstream file_;
};

// The first place, in the order of steps and blocks, at which a rank's distance from the reference exceeds the bound.
struct Parting {
  StatePlace place;
  int rank = 0;  // the rank with the largest distance there
  double distance = 0;
};

struct RecordComparison {
  int64_t states = 0;    // compared states, one for each place and rank
  double farthest = 0;   // largest distance of all states; infinite if a value is not a number
  bool complete = true;  // the run has all states of the reference
  std::optional<Parting> parting;
};

// Estimates ‖a − b‖ / ‖b‖ over the tokens of each rank at each place of `run` against `reference`; both are folders of
// records. A run that ended early is compared as far as it got. InvalidArgument if a file is not a record, or if the
// run has states that the reference lacks.
absl::StatusOr<RecordComparison> CompareRecords(const std::string& run, const std::string& reference, double bound);

}  // namespace tessera::control
