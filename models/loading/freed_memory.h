// The memory that this process has freed and that its C library keeps (KeepFreedMemory), to be given back to the system
// while the process makes nothing: what shares its memory with it, another group in a container above all, may need it.
// For one thread.
#pragma once

#include <cstdint>

namespace tessera::models {

class FreedMemory {
 public:
  // Gives it back, unless the process has not grown by much since the last time.
  void Release();

 private:
  int64_t resident_ = 0;  // bytes, after the last time
};

}  // namespace tessera::models
