// TraceFile writes a timeline of a process's work on images in the trace event format, which Perfetto and
// chrome://tracing open.
//
// The file is a JSON array with one event per line, each written at once. A killed process leaves the array
// unterminated, which the format allows. A file that has reached its size limit is renamed to FILE.1, replacing an
// older one, and a new one is begun. It contains ids, names of models and times, but no prompts. Thread-safe.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time/clock.h"

namespace tessera::server {

inline constexpr size_t kMaxTraceBytes = size_t{64} << 20;

struct TraceLane {
  int64_t process = 0;
  int64_t thread = 0;
};

// An image of a job, which has a separate track.
struct TracedImage {
  std::string job;
  int32_t index = 0;
  std::string trace_parent;  // W3C trace context; empty: the request had none
};

struct TraceSpan {
  std::string name;
  absl::Time start;
  absl::Time end;
  boost::json::object args;
};

class TraceFile {
 public:
  // Replaces a file of that name. `log` is called when the trace ends early because the file cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path,
                                                           std::function<void(const std::string&)> log,
                                                           size_t max_bytes = kMaxTraceBytes);
  ~TraceFile();  // ends the array

  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Returns the calendar time at the start plus elapsed time; it never jumps.
  absl::Time Now() const;

  // Returns a number for a process in the viewer, such as a group of workers.
  int64_t AddProcess(const std::string& name);
  void NameThread(TraceLane lane, const std::string& name);

  // Spans of a lane may nest, but must not overlap otherwise.
  void Span(TraceLane lane, const TraceSpan& span);

  // Begin and end a stage on an image's track. A stage is inside the stages that have begun and not ended.
  void Begin(const TracedImage& image, const std::string& stage, absl::Time time);
  void End(const TracedImage& image, const std::string& stage, absl::Time time, boost::json::object args = {});
  void Stage(const TracedImage& image, const TraceSpan& span);

 private:
  TraceFile(std::string path, std::function<void(const std::string&)> log, size_t max_bytes);

  // These require mutex_.
  absl::Status Open();
  void Close();
  void Name(TraceLane lane, const char* kind, const std::string& name);
  void Write(const boost::json::object& event);
  void WriteBytes(const std::string& bytes);
  std::string Line(const std::string& event) const;
  void GiveUp(const std::string& reason);
  boost::json::object ImageEvent(const TracedImage& image, const std::string& stage, const char* phase,
                                 absl::Time time) const;

  const std::string path_;
  const std::function<void(const std::string&)> log_;
  const size_t max_bytes_;
  const base::SystemClock clock_;
  const absl::Time started_;
  const absl::Duration started_elapsed_;

  std::mutex mutex_;
  int file_ = -1;
  size_t bytes_ = 0;
  int64_t processes_ = 0;
  std::vector<boost::json::object> names_;  // of processes and threads: repeated at the start of each file
};

}  // namespace tessera::server
