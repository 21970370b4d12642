// GenerationTrace records the timeline of `tessera generate`: its workers and the stages of each image. Without a file
// it does nothing.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/protocol/job_replies.h"
#include "server/trace/group_trace.h"
#include "server/trace/trace_file.h"

namespace tessera::client {

class GenerationTrace {
 public:
  // An empty `path` means no trace. `log` is called if the trace ends early.
  absl::Status Open(const std::string& path, int ranks, std::function<void(const std::string&)> log);

  void OnState(const std::string& state);
  void OnWorkers(std::vector<pid_t> pids);
  void OnImage(int64_t image);  // the image's prompt is sent
  void OnStarted(const control::JobStarted& started);
  void OnStepped();
  void OnPreview();
  void OnDecoded();
  void OnWritten();

 private:
  static constexpr uint64_t kTask = 1;  // images are generated one at a time

  std::unique_ptr<server::TraceFile> file_;
  std::optional<server::GroupTrace> group_;
  server::TracedImage image_;
  absl::Time begun_;  // start of the current activity
};

}  // namespace tessera::client
