// The workers of one group for as long as one command needs them: processes and command log together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/session/interrupts.h"
#include "server/workers/worker_group.h"

namespace tessera::client {

// Used by one thread. An interruption kills the workers, unless the options say otherwise; every method then returns
// CANCELLED.
class WorkerSession {
 public:
  struct Options {
    parallel::Layout layout;                          // of the group
    int data = 0;                                     // as in WorkerGroupOptions
    bool ends_at_interruption = true;                 // else whoever holds the session asks the Interrupts
    bool verbose = false;                             // show the workers' own messages
    absl::Duration command_timeout = absl::Hours(1);  // for any one answer
    server::ProgressBounds progress;
  };

  static absl::StatusOr<std::unique_ptr<WorkerSession>> Start(const Options& options, Interrupts& interrupts);

  // A session for a description alone.
  static absl::StatusOr<control::ModelDescription> DescribeAlone(const Options& options, Interrupts& interrupts,
                                                                 const std::string& model);

  // What a layout of so many ranks would compute with; nothing on the CPU.
  static absl::StatusOr<control::DeviceIdentity> IdentifyAlone(const Options& options, Interrupts& interrupts,
                                                               const control::LoadParameters& load, int ranks);

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model);
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters);

  // What is told while an image is made. Any may be empty.
  struct Listener {
    std::function<void(const control::JobStarted&)> started;
    std::function<void(const control::Stepped&)> stepped;
    int32_t preview_every = 0;  // steps; 0: no previews
    std::function<void(int32_t step, const control::Image&)> preview;
  };

  struct Picture {
    control::Image image;
    control::JobStarted started;
    double decode_seconds = 0;
  };

  // One image from its prompt to its pixels. Errors say what was under way.
  absl::StatusOr<Picture> MakeImage(const control::JobParameters& parameters, const Listener& listener);
  // Images of one size and number of steps, each step of all of them together. Previews are of the first.
  absl::StatusOr<std::vector<Picture>> MakeImages(absl::Span<const control::JobParameters> batch,
                                                  const Listener& listener);

  uint64_t PeakMemoryBytes() const { return group_->PeakMemoryBytes(); }

  // For what Describe, Load and MakeImage do not offer; Explain makes its errors those of a session.
  server::WorkerGroup& group() { return *group_; }

  // CANCELLED where the user wanted it; names the activity where a worker has gone.
  absl::Status Explain(const absl::Status& status, const std::string& activity) const;

  // Ends the workers in good order.
  absl::Status Close();

 private:
  class Batch;

  WorkerSession(std::unique_ptr<server::WorkerGroup> group, Interrupts& interrupts, bool ends_at_interruption);

  Interrupts& interrupts_;
  const std::unique_ptr<server::WorkerGroup> group_;
  std::optional<Interrupts::Reaction> reaction_;
  uint64_t last_job_ = 0;
};

}  // namespace tessera::client
