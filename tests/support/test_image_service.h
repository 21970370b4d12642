// TestImageService is the service that the tests of HTTP, of gRPC and of their clients call: a DurableImageService with
// a fake worker in a temporary folder. A test can hold the worker's steps back and replace the answers of single calls.
//
// The models that it lists have the limits of FakeModel. A job whose prompt is one of these words has the fault:
// "[fail]" fails at its second step, "[misfit]" is refused by the model because of its steps, "[die]" kills its worker,
// and "[warn]" carries a warning. "[refuse]" is never accepted: the queue is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/api/image_service.h"
#include "server/api/node_info.h"
#include "tests/support/test_folder.h"

namespace tessera::control {
enum class PictureInput : uint8_t;
}

namespace tessera::server {
class DurableImageService;
enum class JobState : uint8_t;
}  // namespace tessera::server

namespace tessera {

struct TestModel {
  std::string name;
  std::vector<std::string> aliases = {};
  control::PictureInput pictures = {};
};

struct TestServiceOptions {
  std::vector<TestModel> models = {{.name = "fake"}};
  std::vector<std::string> adapters;                            // names of files in the adapter folder
  std::string script;                                           // instructions for the worker
  bool paused = false;                                          // the worker makes only the steps of AllowSteps
  int64_t max_queued = 1000;                                    // images of unfinished jobs
  bool openai_names = false;                                    // as DurableServiceOptions
  size_t min_file_bytes = 0;                                    // of an image file, which is padded to this size
  std::function<base::SharedBytes(base::SharedBytes)> file_of;  // replaces the bytes of an opened image
  std::function<void()> before_submit;                          // called by every Submit; may block
  std::vector<server::NodeInfo> nodes;                          // that Info reports
};

class TestImageService final : public server::ImageService {
 public:
  explicit TestImageService(TestServiceOptions options = {});  // returns when the groups are ready
  ~TestImageService() override;

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
  absl::StatusOr<std::vector<server::DayUsage>> Usage(const server::UsageQuery& query) override;
  absl::StatusOr<server::ImageFile> OpenImage(const server::Caller& caller, absl::string_view image) override;
  std::vector<server::ServedModel> ListModels() override;
  absl::StatusOr<server::LoadedAdapter> LoadAdapter(const std::string& name) override;
  absl::Status UnloadAdapter(const std::string& name) override;
  absl::StatusOr<server::StoredPicture> PutPicture(const server::Caller& caller, absl::string_view file) override;
  absl::StatusOr<std::string> ReadPicture(const server::Caller& caller, const control::PictureUse& picture) override;
  absl::StatusOr<server::UploadedFile> PutFile(const server::Caller& caller, absl::string_view file) override;
  absl::StatusOr<server::UploadedFile> FindFile(const server::Caller& caller, absl::string_view id) override;
  absl::StatusOr<std::vector<server::UploadedFile>> ListFiles(const server::Caller& caller) override;
  absl::Status DeleteFile(const server::Caller& caller, absl::string_view id) override;
  server::ServerInfo Info() override;
  absl::Status Ready() override;
  absl::Status Probe() override;
  std::string MetricsText() override;

  // Permits this many more steps. Has an effect only with `paused`.
  void AllowSteps(int64_t steps);
  const std::string& data_folder() const { return data_folder_; }
  // Ready returns this status if it is an error.
  void SetReady(absl::Status ready);

  // Wait until a job is in `state`, until `count` of the submitted jobs are in it, and until there are `count` watches.
  // After a minute they fail the test and return false.
  bool WaitForState(const std::string& job, server::JobState state);
  bool WaitForJobs(server::JobState state, size_t count);
  bool WaitForWatches(size_t count);

 private:
  class CountedWatch;

  server::JobState StateOf(const std::string& job);

  const TestServiceOptions options_;
  const TestFolder folder_;
  const std::string data_folder_ = folder_ / "data";
  std::unique_ptr<server::DurableImageService> service_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, std::string> tenants_;  // by job
  size_t watches_ = 0;
  absl::Status ready_;
};

}  // namespace tessera
