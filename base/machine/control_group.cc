#include "base/machine/control_group.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/machine/proc_text.h"

namespace tessera::base {
namespace {

// Adds the group at `path` below `mount`, and its ancestors.
void AddWithParents(const std::string& mount, absl::string_view path, int version, std::vector<ControlGroup>& groups) {
  std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  // A group outside of the process's view is reported as /../name.
  if (std::find(parts.begin(), parts.end(), "..") != parts.end()) parts.clear();
  for (; !parts.empty(); parts.pop_back()) {
    groups.push_back({.version = version, .folder = absl::StrCat(mount, "/", absl::StrJoin(parts, "/"))});
  }
  groups.push_back({.version = version, .folder = mount});
}

}  // namespace

// /proc/self/cgroup has lines of the form "0::/path" in version 2, "4:cpu,cpuacct:/path" in version 1, or both.
std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const std::string& root) {
  const std::string text = ReadProcText(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  std::vector<ControlGroup> groups;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[0] == "0" && fields[1].empty()) {
      AddWithParents(mount, fields[2], 2, groups);
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      // Mounted under the names of all its controllers, with a link for each; a container may lack the links.
      AddWithParents(absl::StrCat(mount, "/", fields[1]), fields[2], 1, groups);
      if (controllers.size() > 1) {
        AddWithParents(absl::StrCat(mount, "/", std::string(controller)), fields[2], 1, groups);
      }
    }
  }
  return groups;
}

}  // namespace tessera::base
