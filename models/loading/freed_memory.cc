#include "models/loading/freed_memory.h"

#include <malloc.h>
#include <unistd.h>

#include "base/machine/machine_memory.h"

namespace tessera::models {
namespace {

constexpr int64_t kMuch = 32 << 20;  // what small images take is cheaper to keep than to fault in again

int64_t OwnBytes() { return base::ReadProcessMemory({getpid()}); }

}  // namespace

void FreedMemory::Release() {
  if (OwnBytes() <= resident_ + kMuch) return;
  malloc_trim(0);
  resident_ = OwnBytes();
}

}  // namespace tessera::models
