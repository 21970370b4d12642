#include "server/jobs/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::server {
namespace {

constexpr auto kFailpoints = std::to_array<absl::string_view>({
    "recover.before_commit",
    "recover.after_commit",
    "submit.begin",
    "submit.before_commit",
    "submit.after_commit",
    "claim.before_commit",
    "claim.after_commit",
    "finish.before_file",
    "finish.after_file",
    "finish.before_commit",
    "finish.after_commit",
    "fail.before_commit",
    "fail.after_commit",
    "fail_queued.before_commit",
    "fail_queued.after_commit",
    "cancel.before_commit",
    "cancel.after_commit",
    "give_back.before_commit",
    "give_back.after_commit",
    "group_died.before_commit",
    "group_died.after_commit",
    "settle.before_files",
    "settle.after_files",
    "settle.before_commit",
    "settle.after_commit",
    "sweep.before_commit",
    "sweep.before_files",
    "record.before",
    "record.after",
});

}  // namespace

absl::Span<const absl::string_view> Failpoints() { return kFailpoints; }

absl::StatusOr<AtPoint> DieAt(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  int64_t count = 1;
  if (parts.first.size() < text.size() && (!absl::SimpleAtoi(parts.second, &count) || count < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("'", parts.second, "' is not a number of times"));
  }
  if (std::ranges::find(kFailpoints, parts.first) == kFailpoints.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no failpoint '", parts.first, "'; valid values: ", absl::StrJoin(kFailpoints, ", ")));
  }
  const auto left = std::make_shared<std::atomic<int64_t>>(count);
  return [point = parts.first, left](absl::string_view reached) {
    if (reached == point && --*left == 0) ::kill(::getpid(), SIGKILL);
  };
}

}  // namespace tessera::server
