#include "server/jobs/job_record.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr size_t kTokenDigits = 32;
constexpr size_t kMaxNumberDigits = 19;

absl::StatusOr<RecordId> ParseId(absl::string_view text, absl::string_view prefix, absl::string_view kind) {
  const auto unknown = [&] { return absl::NotFoundError(absl::StrCat("there is no such ", kind)); };
  if (!absl::ConsumePrefix(&text, prefix)) return unknown();
  const size_t dash = text.find('-');
  if (dash == absl::string_view::npos || dash == 0 || dash > kMaxNumberDigits) return unknown();
  const absl::string_view digits = text.substr(0, dash), token = text.substr(dash + 1);
  const bool digits_only = std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  const bool hex_only =
      std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
  RecordId id{.token = std::string(token)};
  if (!digits_only || digits[0] == '0' || token.size() != kTokenDigits || !hex_only ||
      !absl::SimpleAtoi(digits, &id.number) || id.number > uint64_t{INT64_MAX}) {
    return unknown();
  }
  return id;
}

}  // namespace

JobState StateOf(absl::Span<const TaskState> tasks) {
  const auto any = [&](TaskState state) { return std::find(tasks.begin(), tasks.end(), state) != tasks.end(); };
  if (any(TaskState::kRunning)) return JobState::kRunning;
  if (any(TaskState::kQueued)) {
    const bool begun = std::any_of(tasks.begin(), tasks.end(), [](TaskState state) { return IsEnded(state); });
    return begun ? JobState::kRunning : JobState::kQueued;
  }
  if (any(TaskState::kFailed) || any(TaskState::kQuarantined)) return JobState::kFailed;
  return any(TaskState::kCancelled) ? JobState::kCancelled : JobState::kDone;
}

JobState StateOf(const JobRecord& job) {
  std::vector<TaskState> states;
  for (const TaskRecord& task : job.tasks) states.push_back(task.state);
  return StateOf(states);
}

absl::Status ErrorOf(const JobRecord& job) {
  for (const TaskRecord& task : job.tasks) {
    if (!task.error.ok()) return task.error;
  }
  return absl::OkStatus();
}

std::string JobIdText(const RecordId& id) { return absl::StrCat("job-", id.number, "-", id.token); }

std::string ImageIdText(const RecordId& id) { return absl::StrCat("img-", id.number, "-", id.token); }

absl::StatusOr<RecordId> ParseJobId(absl::string_view text) { return ParseId(text, "job-", "job"); }

absl::StatusOr<RecordId> ParseImageId(absl::string_view text) { return ParseId(text, "img-", "image"); }

}  // namespace tessera
