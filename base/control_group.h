// The control groups (cgroups) of this process, as /proc and /sys name them. A container's limits of memory and of
// processor time are those of its groups. Linux; LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct ControlGroup {
  int version;         // of its hierarchy, which decides what its files are called: 1 or 2
  std::string folder;  // that holds its files; it need not be there
};

// The groups that bind this process for that controller ("memory", "cpu"): its own and every one above it up to the one
// that is mounted, in each hierarchy that has the controller. A limit of any of them holds, so the least counts. A
// container often sees its own group mounted at the top while the kernel tells the host's name for it: then some of
// these folders do not exist, and limit nothing. Reads `root`/proc/self/cgroup and looks below `root`/sys/fs/cgroup.
std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const std::string& root);

}  // namespace tessera::base
