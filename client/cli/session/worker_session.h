// WorkerSession runs the workers of one group for one command: the processes and their command log together.
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
#include "client/cli/interrupts.h"
#include "server/workers/worker_group.h"

namespace tessera::client {

// Used by one thread. An interruption kills the workers, unless the options say otherwise; every method then returns
// CANCELLED.
class WorkerSession {
 public:
  struct Options {
    parallel::Layout layout;                          // the group's layout
    int data = 0;                                     // WorkerGroupOptions::data
    bool ends_at_interruption = true;                 // otherwise the session's owner checks Interrupts
    bool verbose = false;                             // show the workers' messages
    absl::Duration command_timeout = absl::Hours(1);  // for any one reply
    server::ProgressBounds progress;
  };

  static absl::StatusOr<std::unique_ptr<WorkerSession>> Start(const Options& options, Interrupts& interrupts);

  // Starts a session only to describe a model.
  static absl::StatusOr<control::ModelDescription> DescribeAlone(const Options& options, Interrupts& interrupts,
                                                                 const std::string& model);
  static absl::StatusOr<control::ModelDescription> DescribeAlone(const Options& options, Interrupts& interrupts,
                                                                 const std::string& model,
                                                                 const control::ComponentFiles& files);

  // Returns the identity of the devices that a layout of `ranks` ranks would use; empty on the CPU.
  static absl::StatusOr<control::DeviceIdentity> IdentifyAlone(const Options& options, Interrupts& interrupts,
                                                               const control::LoadParameters& load, int ranks);

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model);
  absl::StatusOr<control::ModelDescription> Describe(const std::string& model, const control::ComponentFiles& files);
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters);
  absl::StatusOr<std::string> Digest();  // see WorkerGroup

  // Callbacks while an image is generated. Any may be empty.
  struct Listener {
    std::function<void(const control::JobStarted&)> started;
    std::function<void(const control::Stepped&)> stepped;
    int32_t preview_every = 0;  // steps; 0: no previews
    std::function<void(int32_t step, const control::Frames&)> preview;
  };

  struct Picture {
    control::Frames image;
    control::JobStarted started;
    double decode_seconds = 0;
  };

  // Generates one image from its prompt. Errors name the activity during which they occurred.
  absl::StatusOr<Picture> MakeImage(const control::JobParameters& parameters, const Listener& listener);
  // Generates images of one size and number of steps, with every step run for all of them in a batch. Previews show the
  // first image.
  absl::StatusOr<std::vector<Picture>> MakeImages(absl::Span<const control::JobParameters> batch,
                                                  const Listener& listener);

  uint64_t PeakMemoryBytes() const { return group_->PeakMemoryBytes(); }

  // For calls that this class does not offer; Explain converts their errors to those of a session.
  server::WorkerGroup& group() { return *group_; }

  // Returns CANCELLED if the user interrupted; if a worker ended, the error names the activity.
  absl::Status Explain(const absl::Status& status, const std::string& activity) const;

  // Shuts down the workers in an orderly way.
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
