// PretendMemory manages the memory of the pretend device (pretend_device.h): blocks, which of them are live, and which
// of them graphs keep. As on a GPU, memory allocated during a capture belongs to the graph for the graph's lifetime,
// even if it is freed.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera {

// The address of a block, and a serial number that distinguishes it from earlier blocks at that address.
struct PretendBlock {
  const void* memory = nullptr;
  int64_t serial = 0;
};

// Thread-safe.
class PretendMemory {
 public:
  static PretendMemory& Instance();

  // Throws c10::OutOfMemoryError if the total would exceed `most` bytes.
  void* Allocate(int64_t bytes, int64_t most);
  void Free(void* memory);
  int64_t bytes();  // live and kept
  // Freed bytes that the next allocation may reuse, until GiveBack.
  int64_t cached();
  void GiveBack();

  // Returns the block that begins at `memory`. Its serial is 0 if there is none.
  PretendBlock Find(const void* memory);
  bool IsLive(const PretendBlock& block);

  // Returns the last call of the default stream that used the block containing `address`; Use sets it.
  int64_t LastCall(const void* address);
  void Use(const void* address, int64_t call);

  // From now until EndKeeping, allocations of the calling thread are kept for a graph.
  void BeginKeeping();
  std::vector<PretendBlock> EndKeeping();
  int64_t BytesOf(const std::vector<PretendBlock>& kept);
  // Fills the blocks with NaN, which no correct result contains.
  void Spoil(const std::vector<PretendBlock>& kept);
  void Release(const std::vector<PretendBlock>& kept);

 private:
  struct Entry {
    int64_t serial = 0;
    int64_t bytes = 0;
    bool kept = false;   // for a graph
    bool freed = false;  // freed by its owner while it is kept
    int64_t last_call = 0;
  };

  // Requires the mutex.
  Entry& EntryOf(const void* address);

  std::mutex mutex_;
  std::map<const void*, Entry> entries_;
  int64_t serials_ = 0;
  int64_t bytes_ = 0, cached_ = 0;
};

}  // namespace tessera
