// PlantedBug enables one of the bugs planted in a program's code (base/macros/planted.h).
#pragma once

namespace tessera {

// Enables only the bug of that name, for all threads, while the object exists; "" enables none. Create and destroy it
// while no other thread runs code with planted bugs.
class PlantedBug final {
 public:
  explicit PlantedBug(const char* name);
  ~PlantedBug();
  PlantedBug(const PlantedBug&) = delete;
  PlantedBug& operator=(const PlantedBug&) = delete;

 private:
  const char* before_;
};

}  // namespace tessera
