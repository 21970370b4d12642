#include "server/trace/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/private_files.h"
#include "base/json/plain_json.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "server/calls/call_ids.h"

namespace tessera::server {
namespace {

constexpr int64_t kImagesProcess = 1;
constexpr char kFirstLine[] = "[\n";
constexpr char kLastLine[] = "\n]\n";

int64_t Microseconds(absl::Time time) { return absl::ToUnixMicros(time); }

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path,
                                                             std::function<void(const std::string&)> log,
                                                             size_t max_bytes) {
  std::unique_ptr<TraceFile> trace(new TraceFile(path, std::move(log), max_bytes));
  const std::lock_guard lock(trace->mutex_);
  RETURN_IF_ERROR(trace->Open());
  trace->processes_ = kImagesProcess;
  trace->Name({.process = kImagesProcess}, "process_name", "images");
  return trace;
}

TraceFile::TraceFile(std::string path, std::function<void(const std::string&)> log, size_t max_bytes)
    : path_(std::move(path)),
      log_(std::move(log)),
      max_bytes_(max_bytes),
      started_(clock_.Now()),
      started_elapsed_(clock_.Elapsed()) {}

TraceFile::~TraceFile() {
  const std::lock_guard lock(mutex_);
  Close();
}

absl::Time TraceFile::Now() const { return started_ + (clock_.Elapsed() - started_elapsed_); }

absl::Status TraceFile::Open() {
  if (const std::filesystem::path folder = std::filesystem::path(path_).parent_path(); !folder.empty()) {
    RETURN_IF_ERROR(base::MakeFolder(folder.string()));
  }
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  struct stat about = {};
  const bool regular = file_ >= 0 && fstat(file_, &about) == 0 && S_ISREG(about.st_mode);
  // An existing file may have been readable by others.
  if (file_ < 0 || (regular && fchmod(file_, 0600) != 0)) {
    const std::string reason = std::strerror(errno);
    if (file_ >= 0) close(std::exchange(file_, -1));
    return absl::UnavailableError(absl::StrCat("the trace '", path_, "' cannot be written: ", reason));
  }
  bytes_ = 0;
  WriteBytes(kFirstLine);
  return absl::OkStatus();
}

void TraceFile::Close() {
  if (file_ < 0) return;
  WriteBytes(kLastLine);
  if (file_ >= 0) close(std::exchange(file_, -1));
}

void TraceFile::GiveUp(const std::string& reason) {
  close(std::exchange(file_, -1));
  log_(absl::StrCat("the trace '", path_, "' ends here: ", reason));
}

void TraceFile::WriteBytes(const std::string& bytes) {
  if (const int error = base::WriteBytes(file_, bytes); error != 0) return GiveUp(std::strerror(error));
  bytes_ += bytes.size();
}

void TraceFile::Write(const boost::json::object& event) {
  if (file_ < 0) return;
  const std::string line = base::PlainJson(event);
  if (bytes_ + line.size() + sizeof(kLastLine) > max_bytes_) {
    Close();
    if (rename(path_.c_str(), (path_ + ".1").c_str()) != 0) {
      log_(absl::StrCat("the trace '", path_, "' begins again: ", std::strerror(errno)));
    }
    if (absl::Status opened = Open(); !opened.ok()) return log_(std::string(opened.message()));
    for (const boost::json::object& name : names_) WriteBytes(Line(base::PlainJson(name)));
  }
  if (file_ >= 0) WriteBytes(Line(line));
}

std::string TraceFile::Line(const std::string& event) const {
  return absl::StrCat(bytes_ == std::strlen(kFirstLine) ? "" : ",\n", event);
}

void TraceFile::Name(TraceLane lane, const char* kind, const std::string& name) {
  boost::json::object event = {{"name", kind},
                               {"ph", "M"},
                               {"pid", lane.process},
                               {"tid", lane.thread},
                               {"args", {{"name", base::ReplaceInvalidUtf8(name)}}}};
  Write(event);
  names_.push_back(std::move(event));
}

int64_t TraceFile::AddProcess(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const int64_t process = ++processes_;
  Name({.process = process}, "process_name", name);
  return process;
}

void TraceFile::NameThread(TraceLane lane, const std::string& name) {
  const std::lock_guard lock(mutex_);
  Name(lane, "thread_name", name);
}

void TraceFile::Span(TraceLane lane, const TraceSpan& span) {
  const boost::json::object event = {{"name", base::ReplaceInvalidUtf8(span.name)},
                                     {"ph", "X"},
                                     {"pid", lane.process},
                                     {"tid", lane.thread},
                                     {"ts", Microseconds(span.start)},
                                     {"dur", Microseconds(span.end) - Microseconds(span.start)},
                                     {"args", span.args}};
  const std::lock_guard lock(mutex_);
  Write(event);
}

boost::json::object TraceFile::ImageEvent(const TracedImage& image, const std::string& stage, const char* phase,
                                          absl::Time time) const {
  return {{"name", stage},
          {"cat", "image"},
          {"ph", phase},
          {"id", absl::StrCat(image.job, "/", image.index)},
          {"pid", kImagesProcess},
          {"tid", 0},
          {"ts", Microseconds(time)}};
}

void TraceFile::Begin(const TracedImage& image, const std::string& stage, absl::Time time) {
  boost::json::object event = ImageEvent(image, stage, "b", time);
  boost::json::object args = {{"job", image.job}, {"image", image.index}};
  if (const std::string id = TraceIdOf(image.trace_parent); !id.empty()) args["trace_id"] = id;
  event["args"] = std::move(args);
  const std::lock_guard lock(mutex_);
  Write(event);
}

void TraceFile::End(const TracedImage& image, const std::string& stage, absl::Time time, boost::json::object args) {
  boost::json::object event = ImageEvent(image, stage, "e", time);
  event["args"] = std::move(args);
  const std::lock_guard lock(mutex_);
  Write(event);
}

void TraceFile::Stage(const TracedImage& image, const TraceSpan& span) {
  Begin(image, span.name, span.start);
  End(image, span.name, span.end, span.args);
}

}  // namespace tessera::server
