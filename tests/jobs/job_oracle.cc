#include "tests/jobs/job_oracle.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/read_bytes.h"

namespace tessera {

namespace {

constexpr int32_t kPage = 1000;

// Compares the totals of usage with the tasks of the store, whether they were acknowledged or not.
int64_t CountMistakes(server::JobStore& store) {
  int64_t images = 0, steps = 0;
  std::string after;
  do {
    const absl::StatusOr<server::JobRecordPage> page = store.List(kOracleTenant, kPage, after);
    if (!page.ok()) return 1;
    for (const server::JobRecord& job : page->jobs) {
      for (const server::TaskRecord& task : job.tasks) {
        if (task.state == server::TaskState::kDone) ++images, steps += kFinishedSteps;
        if (task.state == server::TaskState::kFailed) steps += kFailedSteps;
      }
    }
    after = page->next;
  } while (!after.empty());
  const absl::CivilDay today = absl::ToCivilDay(store.Calendar(), absl::UTCTimeZone());
  const absl::StatusOr<std::vector<server::DayUsage>> usage =
      store.Usage({.key = kOracleTenant, .since = today - 1, .until = today + 1});
  if (!usage.ok()) return 1;
  for (const server::DayUsage& day : *usage) {
    images -= day.usage.images;
    steps -= day.usage.steps;
  }
  return std::abs(images) + std::abs(steps);
}

}  // namespace

std::string AckLine(const Ack& ack) {
  return absl::StrCat(std::string(1, ack.kind), " ", ack.task, " ", ack.attempt, " ", ack.job, " .\n");
}

bool ParseAck(absl::string_view line, Ack* ack) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 5 || words[0].size() != 1 || words[4] != ".") return false;
  ack->kind = words[0][0];
  ack->job = std::string(words[3]);
  return absl::SimpleAtoi(words[1], &ack->task) && absl::SimpleAtoi(words[2], &ack->attempt);
}

std::string ImageBytesOf(const server::TaskAttempt& attempt) {
  std::string bytes;
  const size_t size = 200 + attempt.task * 37 % 3000;
  while (bytes.size() < size) absl::StrAppend(&bytes, "task ", attempt.task, " attempt ", attempt.attempt, "; ");
  return bytes;
}

void OracleTally::Add(const OracleTally& other) {
  acked += other.acked;
  done += other.done;
  failed += other.failed;
  cancelled += other.cancelled;
  lost += other.lost;
  duplicated += other.duplicated;
  torn += other.torn;
  miscounted += other.miscounted;
}

std::string OracleTally::Line() const {
  return absl::StrCat("acked ", acked, " done ", done, " failed ", failed, " cancelled ", cancelled, " lost ", lost,
                      " duplicated ", duplicated, " torn ", torn, " miscounted ", miscounted);
}

void JobOracle::Hear(const Ack& ack) {
  Promise& promise = promises_[ack.task];
  switch (ack.kind) {
    case 'S':
      promise.job = ack.job;
      break;
    case 'D':
      ++promise.finishes;
      break;
    case 'F':
      promise.failed = true;
      break;
    case 'C':
      promise.cancelled = true;
      break;
    default:
      break;
  }
}

OracleTally JobOracle::Judge(server::JobStore& store) const {
  OracleTally tally{.miscounted = CountMistakes(store)};
  for (const auto& [id, promise] : promises_) {
    if (promise.job.empty()) continue;  // submitted, but the answer never arrived
    ++tally.acked;
    const absl::StatusOr<server::JobRecord> job = store.Get(kOracleTenant, promise.job);
    const server::TaskRecord* task = nullptr;
    if (job.ok()) {
      for (const server::TaskRecord& candidate : job->tasks) {
        if (candidate.id == id) task = &candidate;
      }
    }
    if (task == nullptr || !server::IsEnded(task->state)) {
      ++tally.lost;
      continue;
    }
    if (promise.finishes > 1) ++tally.duplicated;
    switch (task->state) {
      case server::TaskState::kDone: {
        ++tally.done;
        if (promise.failed || promise.cancelled) ++tally.duplicated;
        const absl::StatusOr<std::string> image = ReadBytes(store.OpenImage(kOracleTenant, task->image->id));
        if (!image.ok() || *image != ImageBytesOf({.task = id, .attempt = task->attempt})) ++tally.torn;
        break;
      }
      case server::TaskState::kCancelled:
        ++tally.cancelled;
        if (promise.finishes > 0 || promise.failed) ++tally.lost;
        break;
      default:
        ++tally.failed;
        if (promise.finishes > 0 || promise.cancelled) ++tally.lost;
        break;
    }
  }
  return tally;
}

}  // namespace tessera
