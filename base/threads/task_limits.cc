#include "base/threads/task_limits.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine/control_group.h"
#include "base/machine/proc_text.h"

namespace tessera::base {
namespace {

constexpr uint64_t kSysAdmin = uint64_t{1} << 21, kSysResource = uint64_t{1} << 24;

std::optional<int64_t> NumberOf(absl::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0) return std::nullopt;
  return value;
}

// Returns the real user of a process, from its status.
std::optional<int64_t> UserOf(const std::string& status) {
  const std::vector<std::string> users = WordsAfter(status, "Uid:");
  return users.empty() ? std::nullopt : NumberOf(users[0]);
}

// Returns whether the process is root of the machine or has a capability there; those of a user namespace do not count.
bool IsExempt(const std::string& root, const std::string& status) {
  const std::vector<std::string> map = WordsAfter(ReadProcText(root + "/proc/self/uid_map"), "");
  if (map != std::vector<std::string>{"0", "0", "4294967295"}) return false;
  const std::vector<std::string> effective = WordsAfter(status, "CapEff:");
  uint64_t capabilities = 0;
  if (!effective.empty() && !absl::SimpleHexAtoi(effective[0], &capabilities)) capabilities = 0;
  return UserOf(status) == 0 || (capabilities & (kSysAdmin | kSysResource)) != 0;
}

int64_t TasksOfUser(const std::string& root, int64_t user) {
  int64_t tasks = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator process(root + "/proc", error), end; !error && process != end;
       process.increment(error)) {
    if (!NumberOf(process->path().filename().string())) continue;
    const std::string status = ReadProcText(process->path().string() + "/status");
    if (UserOf(status) != user) continue;
    const std::vector<std::string> threads = WordsAfter(status, "Threads:");
    tasks += threads.empty() ? 0 : NumberOf(threads[0]).value_or(0);
  }
  return tasks;
}

std::optional<TaskLimit> LimitOfUser(const std::string& root) {
  const std::vector<std::string> words = WordsAfter(ReadProcText(root + "/proc/self/limits"), "Max processes");
  const std::optional<int64_t> most = words.empty() ? std::nullopt : NumberOf(words[0]);
  const std::string status = ReadProcText(root + "/proc/self/status");
  const std::optional<int64_t> user = UserOf(status);
  if (!most || !user || IsExempt(root, status)) return std::nullopt;
  return TaskLimit{.name = "the limit of this user's processes and threads (RLIMIT_NPROC)",
                   .remedy = "ulimit -u, LimitNPROC= of a systemd service, --ulimit nproc= for docker",
                   .most = *most,
                   .used = TasksOfUser(root, *user)};
}

}  // namespace

std::vector<TaskLimit> ReadTaskLimits(const std::string& root) {
  std::vector<TaskLimit> limits;
  if (std::optional<TaskLimit> user = LimitOfUser(root)) limits.push_back(*std::move(user));
  for (const ControlGroup& group : ControlGroupsOf("pids", root)) {
    const auto read = [&](const char* name) {
      const std::string text = ReadProcText(absl::StrCat(group.folder, "/", name));
      return NumberOf(absl::StripAsciiWhitespace(text));
    };
    const std::optional<int64_t> most = read("pids.max");  // "max": no limit
    if (!most) continue;
    limits.push_back({.name = "pids.max of the control group (container) of this process",
                      .remedy = "--pids-limit for docker, TasksMax= of a systemd service, podPidsLimit of the kubelet",
                      .most = *most,
                      .used = read("pids.current").value_or(0)});
  }
  return limits;
}

absl::Status CheckTaskLimits(int64_t needed, const std::vector<TaskLimit>& limits) {
  for (const TaskLimit& limit : limits) {
    if (limit.most - limit.used >= needed) continue;
    return absl::ResourceExhaustedError(absl::StrCat(limit.name, " is ", limit.most, ", of which ", limit.used,
                                                     " are in use, and ", needed, " more are needed; raise it to ",
                                                     limit.used + needed, " or more: ", limit.remedy));
  }
  return absl::OkStatus();
}

}  // namespace tessera::base
