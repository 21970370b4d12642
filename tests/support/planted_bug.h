// Which of the bugs that are planted in a program's code (base/planted.h) is switched on.
#pragma once

namespace tessera {

// The bug of that name, and no other, is switched on as long as this is there; "": none is. For all threads; made and
// destroyed while no other thread runs code with planted bugs.
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
