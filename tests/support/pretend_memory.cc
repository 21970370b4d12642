#include "tests/support/pretend_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tessera {
namespace {

thread_local std::vector<PretendBlock>* keeping = nullptr;

}  // namespace

PretendMemory& PretendMemory::Instance() {
  static auto* memory = new PretendMemory;
  return *memory;
}

void* PretendMemory::Allocate(int64_t bytes, int64_t most) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes_ + bytes <= most, "pretended device out of memory: ", bytes,
                   " bytes more than ", bytes_);
  // Empty blocks have distinct addresses, too.
  void* memory = c10::GetCPUAllocator()->raw_allocate(static_cast<size_t>(bytes) + 1);
  const PretendBlock block = {memory, ++serials_};
  entries_[memory] = {.serial = block.serial, .bytes = bytes, .kept = keeping != nullptr};
  if (keeping != nullptr) keeping->push_back(block);
  bytes_ += bytes;
  cached_ -= std::min(cached_, bytes);
  return memory;
}

void PretendMemory::Free(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(memory);
  if (it->second.kept) {
    it->second.freed = true;
    return;
  }
  bytes_ -= it->second.bytes;
  cached_ += it->second.bytes;
  entries_.erase(it);
  c10::GetCPUAllocator()->raw_deallocate(memory);
}

int64_t PretendMemory::bytes() {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t PretendMemory::cached() {
  const std::lock_guard lock(mutex_);
  return cached_;
}

void PretendMemory::GiveBack() {
  const std::lock_guard lock(mutex_);
  cached_ = 0;
}

PretendBlock PretendMemory::Find(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(memory);
  return {memory, it == entries_.end() ? 0 : it->second.serial};
}

bool PretendMemory::IsLive(const PretendBlock& block) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(block.memory);
  return it != entries_.end() && it->second.serial == block.serial;
}

PretendMemory::Entry& PretendMemory::EntryOf(const void* address) {
  const auto after = entries_.upper_bound(address);
  TORCH_CHECK(after != entries_.begin(), "an address of no memory of the pretended device");
  return std::prev(after)->second;
}

int64_t PretendMemory::LastCall(const void* address) {
  const std::lock_guard lock(mutex_);
  return EntryOf(address).last_call;
}

void PretendMemory::Use(const void* address, int64_t call) {
  const std::lock_guard lock(mutex_);
  EntryOf(address).last_call = call;
}

void PretendMemory::BeginKeeping() { keeping = new std::vector<PretendBlock>; }

std::vector<PretendBlock> PretendMemory::EndKeeping() {
  std::vector<PretendBlock> kept = std::move(*keeping);
  delete keeping;
  keeping = nullptr;
  return kept;
}

int64_t PretendMemory::BytesOf(const std::vector<PretendBlock>& kept) {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const PretendBlock& block : kept) bytes += entries_.at(block.memory).bytes;
  return bytes;
}

void PretendMemory::Spoil(const std::vector<PretendBlock>& kept) {
  const std::lock_guard lock(mutex_);
  // 0xFF bytes are NaN in every floating-point dtype.
  for (const PretendBlock& block : kept) {
    std::memset(const_cast<void*>(block.memory), 0xFF, static_cast<size_t>(entries_.at(block.memory).bytes));
  }
}

void PretendMemory::Release(const std::vector<PretendBlock>& kept) {
  for (const PretendBlock& block : kept) {
    bool freed = false;
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = entries_.at(block.memory);
      entry.kept = false;
      freed = entry.freed;
    }
    if (freed) Free(const_cast<void*>(block.memory));
  }
}

}  // namespace tessera
