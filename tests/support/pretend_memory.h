// Memory of the pretended device (pretend_device.h): blocks, which of them are live, and which a graph keeps. As on a
// GPU, what is allocated while work is captured stays the graph's as long as that lives, freed or not.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera {

// Where a block lies and which of all that ever lay there it is.
struct PretendBlock {
  const void* memory = nullptr;
  int64_t serial = 0;
};

// Any thread may call it.
class PretendMemory {
 public:
  static PretendMemory& Instance();

  // Throws c10::OutOfMemoryError where there would be more than `most` bytes.
  void* Allocate(int64_t bytes, int64_t most);
  void Free(void* memory);
  int64_t bytes();  // live and kept
  // Freed, and had again by what is allocated next; until it is given back.
  int64_t cached();
  void GiveBack();

  // The block that begins there; its serial is 0 where none does.
  PretendBlock Find(const void* memory);
  bool IsLive(const PretendBlock& block);

  // The call of the default stream that used the block last in which that address lies, and that it did.
  int64_t LastCall(const void* address);
  void Use(const void* address, int64_t call);

  // From now on until the end, what the calling thread allocates is kept for a graph.
  void BeginKeeping();
  std::vector<PretendBlock> EndKeeping();
  int64_t BytesOf(const std::vector<PretendBlock>& kept);
  // Fills them with bytes that no result is made of.
  void Spoil(const std::vector<PretendBlock>& kept);
  void Release(const std::vector<PretendBlock>& kept);

 private:
  struct Entry {
    int64_t serial = 0;
    int64_t bytes = 0;
    bool kept = false;   // by a graph
    bool freed = false;  // by its owner, where it is kept
    int64_t last_call = 0;
  };

  // With the mutex held.
  Entry& EntryOf(const void* address);

  std::mutex mutex_;
  std::map<const void*, Entry> entries_;
  int64_t serials_ = 0;
  int64_t bytes_ = 0, cached_ = 0;
};

}  // namespace tessera
