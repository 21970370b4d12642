// Control groups with a memory limit. Linux; only for a process that may make them.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/machine/control_group.h"

namespace tessera {

inline bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// A group below the one of this process. It has to be empty when it ends.
class LimitedGroup {
 public:
  // Null where this process may not make one, or the kernel does not limit memory there.
  static std::unique_ptr<LimitedGroup> Make(int64_t limit) {
    for (const base::ControlGroup& own : base::ControlGroupsOf("memory", "")) {
      if (access((own.folder + "/cgroup.procs").c_str(), W_OK) != 0) continue;
      auto group = std::make_unique<LimitedGroup>(own.folder);
      const std::string file = own.version == 1 ? "/memory.limit_in_bytes" : "/memory.max";
      if (access((group->folder_ + file).c_str(), W_OK) != 0) continue;
      if (WriteTo(group->folder_ + file, absl::StrCat(limit))) return group;
    }
    return nullptr;
  }

  explicit LimitedGroup(const std::string& above)
      : above_(above), folder_(absl::StrCat(above, "/tessera-memory-limit-test-", getpid())) {
    mkdir(folder_.c_str(), 0755);
  }
  ~LimitedGroup() { rmdir(folder_.c_str()); }

  // Moves this process; what it starts from now on is there too.
  bool Enter() const { return WriteTo(folder_ + "/cgroup.procs", absl::StrCat(getpid())); }
  bool Leave() const { return WriteTo(above_ + "/cgroup.procs", absl::StrCat(getpid())); }

 private:
  const std::string above_, folder_;
};

}  // namespace tessera
