#include "server/jobs/result_names.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::server {

std::string ResultFileName(const TaskAttempt& attempt) {
  return absl::StrCat(absl::Hex(attempt.task % 256, absl::kZeroPad2), "/", attempt.task, "-", attempt.attempt);
}

std::optional<TaskAttempt> AttemptOfFile(const std::string& file) {
  TaskAttempt attempt;
  const size_t slash = file.rfind('/') + 1;
  const size_t dash = file.find('-', slash);
  if (dash == std::string::npos || !absl::SimpleAtoi(file.substr(slash, dash - slash), &attempt.task) ||
      !absl::SimpleAtoi(file.substr(dash + 1), &attempt.attempt) || ResultFileName(attempt) != file) {
    return std::nullopt;
  }
  return attempt;
}

}  // namespace tessera::server
