#include "base/threads/start_thread.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/threads/task_limits.h"

namespace tessera::base {

void EndWithoutThread(const std::error_code& error) {
  const std::vector<TaskLimit> limits = ReadTaskLimits();
  const absl::Status limit = CheckTaskLimits(1, limits);
  // A limit may be used up although this process cannot see it, because a user's tasks count on the whole machine.
  std::string reason = limit.ok() ? "" : absl::StrCat(": ", std::string(limit.message()));
  if (limit.ok()) {
    for (const TaskLimit& known : limits) {
      absl::StrAppend(&reason, "; ", known.name, " is ", known.most, ": ", known.remedy);
    }
  }
  std::fprintf(stderr, "tessera: a thread cannot be started (%s)%s\n", error.message().c_str(), reason.c_str());
  std::fflush(stderr);
  _exit(kNoThreadExitCode);
}

}  // namespace tessera::base
