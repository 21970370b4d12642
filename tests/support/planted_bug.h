// Switches on one of the bugs that are compiled into a program with TESSERA_PLANTED_BUGS (base/planted.h), as long as
// it lives. One at a time.
#pragma once

#include <string>

#include "base/planted.h"

namespace tessera {

class PlantedBug {
 public:
  explicit PlantedBug(const std::string& name);
  ~PlantedBug();
  PlantedBug(const PlantedBug&) = delete;
};

}  // namespace tessera
