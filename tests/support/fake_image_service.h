// FakeImageService implements the image service without workers, so that tests of the HTTP and gRPC edges can stop it
// at any point. Jobs go through the same states and events; their images are small gradients of the seed. Nothing
// persists after the object is destroyed.
//
// Words in a prompt request failures: "[refuse]" is rejected with a retry delay, "[fail]" fails at its second step,
// "[misfit]" fails as if the model rejected its steps, "[die]" fails as if the workers had died of it, "[warn]" carries
// a warning.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api/image_service.h"

namespace tessera {

struct FakeServiceOptions {
  std::vector<server::ServedModel> models;      // empty: FakeModel() alone
  std::vector<server::ServedAdapter> adapters;  // that LoadAdapter finds
  absl::Duration step_time;                     // of each step
  bool paused = false;                          // steps are done only when AllowSteps permits them
  int64_t max_queued = 1000;                    // unfinished jobs
  absl::Duration retention = absl::Hours(24);
  std::function<absl::Time()> now = absl::Now;
  size_t min_file_bytes = 0;                                    // of an image file, which is padded to this size
  std::function<base::SharedBytes(base::SharedBytes)> file_of;  // replaces the bytes that a reader of an image gets
  std::function<void()> before_submit;                          // called by every Submit; may block
};

// Returns the model that the fake serves by default: 16 to 1024 pixels in multiples of 16, four steps.
server::ServedModel FakeModel(const std::string& id = "fake");

class FakeImageService final : public server::ImageService {
 public:
  explicit FakeImageService(FakeServiceOptions options = {});
  ~FakeImageService() override;

  absl::StatusOr<server::Submitted> Submit(const server::Caller& caller, const server::JobRequest& request,
                                           const std::optional<server::IdempotencyKey>& idempotency) override;
  absl::StatusOr<std::optional<server::Submitted>> FindSubmission(const server::Caller& caller,
                                                                  const server::IdempotencyKey& idempotency) override;
  void CountRejection(const absl::Status& refused) override;
  absl::StatusOr<server::Job> Get(const server::Caller& caller, absl::string_view job) override;
  absl::StatusOr<server::JobPage> List(const server::Caller& caller, const server::ListOptions& options) override;
  absl::StatusOr<server::Job> Cancel(const server::Caller& caller, absl::string_view job) override;
  absl::StatusOr<std::unique_ptr<server::JobWatch>> Watch(const server::Caller& caller, absl::string_view job,
                                                          server::WatchedEvents events, Listener listener) override;
  absl::StatusOr<server::ImageFile> OpenImage(const server::Caller& caller, absl::string_view image) override;
  std::vector<server::ServedModel> ListModels() override;
  // Finds the adapters of the options, but does not list them.
  absl::StatusOr<LoadedAdapter> LoadAdapter(const std::string& name) override;
  absl::Status UnloadAdapter(const std::string& name) override { return LoadAdapter(name).status(); }
  server::ServerInfo Info() override;
  absl::Status Ready() override;
  absl::Status Probe() override;
  std::string MetricsText() override;

  // Permits this many more steps. Has an effect only with `paused`.
  void AllowSteps(int64_t steps);
  void SetReady(absl::Status ready);

  // Block until a job is in `state`, until `count` jobs are in it, and until there are `count` watches. False after
  // `timeout`.
  bool WaitForState(absl::string_view job, server::JobState state, absl::Duration timeout);
  bool WaitForJobs(server::JobState state, size_t count, absl::Duration timeout);
  bool WaitForWatches(size_t count, absl::Duration timeout);

 private:
  struct Record;
  struct Subscription;
  class Watching;

  Record* Find(const server::Caller& caller, absl::string_view job);
  server::Job Snapshot(const Record& record);
  void Report(Record& record, const server::JobEvent& event);
  void TellQueuePositions();
  void End(Record& record, server::JobState state, absl::Status error);
  absl::Status CheckRoom(const server::Caller& caller);
  size_t JobsInState(server::JobState state) const;
  void Work();
  void Run(std::unique_lock<std::recursive_mutex>& lock, const std::shared_ptr<Record>& record);
  bool WaitForStep(std::unique_lock<std::recursive_mutex>& lock, const Record& record);
  void FinishImage(Record& record, int32_t index);

  const FakeServiceOptions options_;
  const absl::Time started_;

  // Recursive because a listener may end its watch.
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, std::shared_ptr<Record>> jobs_;
  std::vector<std::shared_ptr<Record>> order_;  // in order of submission
  std::map<std::pair<std::string, std::string>, std::pair<std::string, std::string>> idempotency_;
  std::map<std::string, std::pair<std::string, server::ImageFile>> images_;  // by id: tenant and file
  absl::Status ready_;
  int64_t allowed_steps_ = 0;
  int64_t rejected_ = 0;
  size_t watches_ = 0;
  bool stopping_ = false;

  std::thread worker_;
};

}  // namespace tessera
