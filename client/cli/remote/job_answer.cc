#include "client/cli/remote/job_answer.h"

#include <boost/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/remote/remote_server.h"
#include "server/api/generation_request.h"

namespace tessera {
namespace {

using boost::json::object;
using boost::json::value;

constexpr int64_t kMostImages = kMaxImageCount;
constexpr int64_t kMostSteps = 1000000;

// Reads fields, and remembers the first that is not as it must be.
class Fields {
 public:
  explicit Fields(const object& fields) : fields_(fields) {}

  std::string Text(const char* name) {
    const value* field = fields_.if_contains(name);
    if (field != nullptr && field->is_string()) return PrintableText(std::string(field->get_string().c_str()));
    return Wrong<std::string>(name);
  }
  std::string Id(const char* name) {
    std::string id = Text(name);
    if (status_.ok() && !CheckJobId(id).ok()) return Wrong<std::string>(name);
    return id;
  }
  std::string Base64(const char* name) {
    const value* field = fields_.if_contains(name);
    std::string bytes;
    if (field != nullptr && field->is_string() && absl::Base64Unescape(field->get_string().c_str(), &bytes))
      return bytes;
    return Wrong<std::string>(name);
  }
  uint64_t Whole(const char* name, uint64_t most) {
    const value* field = fields_.if_contains(name);
    boost::json::error_code error;
    const uint64_t number = field == nullptr ? 0 : field->to_number<uint64_t>(error);
    if (field == nullptr || error || number > most) return Wrong<uint64_t>(name);
    return number;
  }
  bool Flag(const char* name) {
    const value* field = fields_.if_contains(name);
    if (field != nullptr && field->is_bool()) return field->get_bool();
    return Wrong<bool>(name);
  }

  const absl::Status& status() const { return status_; }

 private:
  template <typename Value>
  Value Wrong(const char* name) {
    if (status_.ok()) {
      status_ =
          absl::InternalError(absl::StrCat("the server's answer has no legal '", name, "': is it a Tessera server?"));
    }
    return {};
  }

  const object& fields_;
  absl::Status status_;
};

absl::StatusOr<value> Parse(const std::string& json) {
  boost::json::error_code error;
  value parsed = boost::json::parse(json, error);
  if (!error && parsed.is_object()) return parsed;
  return absl::InternalError("the server's answer is no JSON object: is it a Tessera server?");
}

absl::StatusOr<JobAnswer> JobOf(const object& json) {
  Fields fields(json);
  JobAnswer job = {.id = fields.Id("id"),
                   .status = fields.Text("status"),
                   .model = fields.Text("model"),
                   .size = fields.Text("size"),
                   .count = static_cast<int64_t>(fields.Whole("n", kMostImages)),
                   .seed = fields.Whole("seed", UINT64_MAX),
                   .steps = static_cast<int32_t>(fields.Whole("num_inference_steps", kMostSteps)),
                   .steps_done = static_cast<int64_t>(fields.Whole("steps_done", kMostImages * kMostSteps)),
                   .steps_total = static_cast<int64_t>(fields.Whole("steps_total", kMostImages * kMostSteps)),
                   .created = static_cast<int64_t>(fields.Whole("created_at", INT64_MAX)),
                   .lossless = fields.Flag("lossless")};
  if (!fields.status().ok()) return fields.status();
  if (const value* warnings = json.if_contains("warnings"); warnings != nullptr && warnings->is_array()) {
    for (const value& warning : warnings->get_array()) {
      if (warning.is_string()) job.warnings.push_back(PrintableText(std::string(warning.get_string().c_str())));
    }
  }
  if (const value* error = json.if_contains("error"); error != nullptr && error->is_object()) {
    Fields failure(error->get_object());
    job.error = failure.Text("message");
  }
  return job;
}

}  // namespace

absl::StatusOr<JobAnswer> ReadJobAnswer(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status();
  return JobOf(parsed->get_object());
}

absl::StatusOr<std::vector<JobAnswer>> ReadJobListAnswer(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status();
  const value* data = parsed->get_object().if_contains("data");
  if (data == nullptr || !data->is_array()) {
    return absl::InternalError("the server's answer lists no jobs: is it a Tessera server?");
  }
  std::vector<JobAnswer> jobs;
  for (const value& one : data->get_array()) {
    if (!one.is_object()) return absl::InternalError("the server's answer lists what is no job");
    absl::StatusOr<JobAnswer> job = JobOf(one.get_object());
    if (!job.ok()) return job.status();
    jobs.push_back(*std::move(job));
  }
  return jobs;
}

absl::StatusOr<ImageAnswer> ReadImageAnswer(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status();
  Fields fields(parsed->get_object());
  ImageAnswer image = {.id = fields.Id("id"),
                       .index = static_cast<int64_t>(fields.Whole("index", kMostImages - 1)),
                       .seed = fields.Whole("seed", UINT64_MAX)};
  if (!fields.status().ok()) return fields.status();
  return image;
}

absl::StatusOr<StepAnswer> ReadStepAnswer(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status();
  Fields fields(parsed->get_object());
  StepAnswer step = {.image = static_cast<int64_t>(fields.Whole("image_index", kMostImages - 1)),
                     .step = static_cast<int32_t>(fields.Whole("step", kMostSteps)),
                     .steps = static_cast<int32_t>(fields.Whole("steps", kMostSteps))};
  if (!fields.status().ok()) return fields.status();
  return step;
}

absl::StatusOr<PreviewAnswer> ReadPreviewAnswer(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status();
  Fields fields(parsed->get_object());
  PreviewAnswer preview = {.image = static_cast<int64_t>(fields.Whole("image_index", kMostImages - 1)),
                           .file = fields.Base64("b64_json")};
  if (!fields.status().ok()) return fields.status();
  return preview;
}

std::optional<int64_t> QueuePlace(const std::string& json) {
  const absl::StatusOr<value> parsed = Parse(json);
  if (!parsed.ok()) return std::nullopt;
  Fields fields(parsed->get_object());
  const uint64_t place = fields.Whole("queue_position", INT64_MAX);
  if (!fields.status().ok()) return std::nullopt;
  return static_cast<int64_t>(place);
}

}  // namespace tessera
