// WaitingTasks holds the waiting tasks of one model by key and shape class, each ordered by due time. Pure; one thread.
#pragma once

#include <cstdint>
#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/scheduling/shape_class.h"

namespace tessera::server {

struct WaitingTask {
  absl::Time due;
  uint64_t sequence = 0;  // order of enqueueing; breaks ties
  uint64_t id = 0;

  bool operator<(const WaitingTask& other) const {
    return std::tie(due, sequence) < std::tie(other.due, other.sequence);
  }
};

// The properties that tasks must share to be interchangeable for a group.
struct WaitingClass {
  bool isolated = false;
  ShapeClass shape;

  bool operator<(const WaitingClass& other) const {
    return std::tie(isolated, shape) < std::tie(other.isolated, other.shape);
  }
};

class WaitingTasks final {
 public:
  using Ordered = __gnu_pbds::tree<WaitingTask, __gnu_pbds::null_type, std::less<WaitingTask>, __gnu_pbds::rb_tree_tag,
                                   __gnu_pbds::tree_order_statistics_node_update>;

  void Add(const std::string& key, const WaitingClass& of, const WaitingTask& task, double flops);
  void Remove(const std::string& key, const WaitingClass& of, const WaitingTask& task, double flops);

  // Calls `visit` for every key that has tasks, in the order of names.
  void VisitKeys(absl::FunctionRef<void(const std::string& key, int64_t tasks)> visit) const;

  // Calls `visit` with the tasks of each key in each class.
  void VisitClasses(absl::FunctionRef<void(const WaitingClass& of, const Ordered& tasks)> visit) const;

  // Returns the earliest task of `key` that passes in a class that passes.
  std::optional<uint64_t> Earliest(const std::string& key, absl::FunctionRef<bool(const WaitingClass&)> class_passes,
                                   absl::FunctionRef<bool(uint64_t id)> task_passes) const;

  // Returns the number of the key's tasks that are due before this one.
  int64_t Rank(const std::string& key, const WaitingTask& task) const;

  // Returns the predicted operations of all tasks in classes that pass.
  double Flops(absl::FunctionRef<bool(const WaitingClass&)> class_passes) const;

  int64_t size() const { return size_; }
  double flops() const { return flops_; }
  bool has_isolated() const { return isolated_ > 0; }

 private:
  struct Key {
    std::map<WaitingClass, Ordered> classes;
    int64_t tasks = 0;
  };
  struct Load {
    int64_t tasks = 0;
    double flops = 0;
  };

  std::map<std::string, Key> keys_;  // only keys with tasks, and in them only classes with tasks
  std::map<WaitingClass, Load> loads_;
  int64_t size_ = 0;
  int64_t isolated_ = 0;
  double flops_ = 0;
};

}  // namespace tessera::server
