#include "server/serving/storage_error.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/api/service_error.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kRetry = absl::Seconds(5);

absl::Status ForCaller(const char* code, absl::string_view text) {
  return WithRetryAfter(WithErrorCode(absl::UnavailableError(text), code), kRetry);
}

}  // namespace

bool IsStorageTrouble(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

absl::Status StorageErrorForCaller(const absl::Status& status) {
  if (!IsStorageTrouble(status)) return status;
  return StorageErrorForCaller(absl::IsResourceExhausted(status) ? StorageState::kFull : StorageState::kFailing);
}

absl::Status StorageErrorForCaller(const absl::Status& status, StorageState state) {
  return IsStorageTrouble(status) && state != StorageState::kOk ? StorageErrorForCaller(state)
                                                                : StorageErrorForCaller(status);
}

absl::Status StorageErrorForCaller(StorageState state) {
  switch (state) {
    case StorageState::kOk:
      return absl::OkStatus();
    case StorageState::kFull:
      return ForCaller("storage_full", "the disk of the server is full");
    case StorageState::kFailing:
      return ForCaller("storage_unavailable", "the disk of the server reports errors");
    case StorageState::kUnreachable:
      return ForCaller("storage_unavailable", "the database of the server's queue does not answer");
    case StorageState::kMoved:
      return ForCaller("storage_unavailable", "the data folder of the server was moved or replaced");
    case StorageState::kDamaged:
      return ForCaller("storage_unavailable", "the database of the server is damaged");
  }
  return ForCaller("storage_unavailable", "the disk of the server reports errors");
}

bool IsStorageStuck(const StorageTrouble& trouble, absl::Duration timeout) {
  return trouble.state != StorageState::kOk && trouble.state != StorageState::kDamaged && trouble.duration >= timeout;
}

base::LogLine StorageLogLine(const StorageTrouble& trouble) {
  const std::string state(StorageStateName(trouble.state));
  base::LogLine line(base::LogLevel::kError, "", {{"state", state}});
  line.event = "storage";
  if (trouble.state == StorageState::kOk) {
    line.level = base::LogLevel::kInfo;
    line.text =
        absl::StrCat("storage: ok again after ",
                     absl::FormatDuration(absl::Trunc(trouble.duration, absl::Milliseconds(1))), "; jobs are accepted");
    line.fields["seconds"] = absl::ToDoubleSeconds(trouble.duration);
    return line;
  }
  line.text =
      absl::StrCat("storage: ", state, ": ", std::string(trouble.failure.message()), "; no jobs are accepted",
                   trouble.state == StorageState::kDamaged ? " until the server is restarted" : " and results wait");
  return line;
}

}  // namespace tessera::server
