#include "control/training_log/metrics_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"

namespace tessera::control {
namespace {

constexpr size_t kMaxLogBytes = size_t{1} << 30;

// Returns the complete lines of steps up to `last_step`.
absl::StatusOr<std::string> LinesUpTo(const std::string& text, int64_t last_step, const std::string& path) {
  std::string kept;
  int line_number = 0;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line(text.data() + begin, end - begin);
    const std::string where = absl::StrCat(path, ": line ", ++line_number);
    ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(line, where));
    const base::Json* step = json.Find("step");
    if (step == nullptr || !step->AsInt()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": must be an object with a whole number \"step\""));
    }
    if (*step->AsInt() <= last_step) kept.append(line).push_back('\n');
  }
  return kept;
}

}  // namespace

absl::StatusOr<MetricsLog> MetricsLog::Open(const std::string& path, int64_t last_step) {
  const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, kMaxLogBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  std::string kept;
  if (text.ok()) {
    ASSIGN_OR_RETURN(kept, LinesUpTo(*text, last_step, path));
  }
  if (!text.ok() || kept != *text) RETURN_IF_ERROR(base::WriteFileAtomically(path, kept));
  ASSIGN_OR_RETURN(RecordFile file, RecordFile::Open(path));
  return MetricsLog(std::move(file));
}

absl::Status MetricsLog::Append(int64_t step, double time, std::span<const Metric> metrics, std::string_view event) {
  base::JsonWriter json;
  json.BeginObject().Key("step").Int(step).Key("time").Number(time);
  for (const Metric& metric : metrics) json.Key(metric.name).Number(metric.value);
  if (!event.empty()) json.Key("event").String(event);
  json.EndObject();
  return file_.Append(json.text() + "\n");
}

}  // namespace tessera::control
