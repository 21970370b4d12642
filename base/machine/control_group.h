// Finds the control groups (cgroups) of this process in /proc and /sys. A container's limits of memory and processor
// time are those of its groups. Linux only; does not use LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct ControlGroup {
  int version;         // of its hierarchy, 1 or 2; decides the names of the files
  std::string folder;  // contains the group's files; need not exist
};

// Returns the groups that limit this process for that controller ("memory", "cpu"): its own group and all of its
// ancestors up to the mounted one, in each hierarchy with the controller. Every limit applies, so the least counts. In
// a container the process's group is often mounted at the top while the kernel reports the host's path for it; then
// some of these folders do not exist and set no limit. Reads `root`/proc/self/cgroup and searches `root`/sys/fs/cgroup.
std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const std::string& root);

}  // namespace tessera::base
