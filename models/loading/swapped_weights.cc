#include "models/loading/swapped_weights.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>

#include "base/macros/planted.h"

namespace tessera::models {
namespace {

constexpr int64_t kDeviceAlignment = 512;  // bytes; the alignment of the device's allocator

c10::Stream CurrentStream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// Makes the storage use `memory`, which it does not own.
void Place(const at::Tensor& values, void* memory, int64_t bytes) {
  c10::StorageImpl* storage = values.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(memory, values.device()));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

}  // namespace

bool SwappedWeights::AreIn(std::span<const Param> params) {
  return std::ranges::any_of(params, [](const Param& param) { return param.waiting.defined(); });
}

SwappedWeights::SwappedWeights(std::span<const Param> params, at::Device device)
    : device_(device),
      copies_(base::Planted("swapped_block_on_the_computing_stream")
                  ? CurrentStream(device)
                  : c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      previous_(Param::kNoBlock) {
  const at::NoGradGuard no_gradients;
  for (const Param& param : params) {
    if (param.block == Param::kNoBlock) continue;
    Block& block = blocks_[param.block];
    if (!param.waiting.defined()) continue;
    AddStorage(block, param.storage, param.waiting);
    if (param.scales.defined()) AddStorage(block, param.scales, param.waiting_scales);
  }
  int64_t largest = 0;
  size_t waiting = 0;
  for (const auto& [index, block] : blocks_) {
    largest = std::max(largest, block.bytes);
    waiting += block.storages.empty() ? 0 : 1;
  }
  for (size_t i = 0; i < std::min(kBuffers, waiting); ++i) {
    buffers_.push_back({.memory = at::empty({largest}, at::TensorOptions(at::kByte).device(device)),
                        .arrived = c10::Event(device.type()),
                        .released = c10::Event(device.type())});
    // The previous owner of the memory used it on the current stream.
    buffers_.back().released.record(CurrentStream(device));
  }
}

SwappedWeights::~SwappedWeights() {
  for (const auto& [index, block] : blocks_) {
    for (const Storage& storage : block.storages) Place(storage.values, nullptr, 0);
  }
  // Copies in progress must end before the buffers are freed.
  for (const Buffer& buffer : buffers_) {
    try {
      if (buffer.block != Param::kNoBlock) buffer.arrived.synchronize();
    } catch (const c10::Error&) {  // the device failed, so no copy is in progress
    }
  }
}

void SwappedWeights::AddStorage(Block& block, const at::Tensor& storage, const at::Tensor& waiting) {
  const auto is_known = [&](const Storage& known) { return known.values.storage().is_alias_of(storage.storage()); };
  if (std::ranges::any_of(block.storages, is_known)) return;
  block.storages.push_back(
      {.values = storage.variable_data(), .waiting = waiting.flatten().view(at::kByte), .offset = block.bytes});
  const int64_t bytes = block.storages.back().waiting.numel();
  block.bytes += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

SwappedWeights::Buffer* SwappedWeights::Find(int64_t block) {
  const auto found = std::ranges::find(buffers_, block, &Buffer::block);
  return found == buffers_.end() ? nullptr : &*found;
}

SwappedWeights::Buffer* SwappedWeights::FindFree() {
  Buffer* free = nullptr;
  for (Buffer& buffer : buffers_) {
    const bool in_use = buffer.block != Param::kNoBlock && blocks_.at(buffer.block).uses > 0;
    if (!in_use && (free == nullptr || buffer.used < free->used)) free = &buffer;
  }
  return free;
}

SwappedWeights::Buffer& SwappedWeights::Fetch(int64_t block, Buffer& buffer) {
  // The caller may be in inference mode, in which a view of the buffer would be an inference tensor.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_gradients;
  buffer.block = block;
  buffer.used = calls_;
  const c10::StreamGuard on_own_stream(copies_);
  if (!base::Planted("swapped_block_overwritten_in_use")) buffer.released.block(copies_);
  for (const Storage& storage : blocks_.at(block).storages) {
    buffer.memory.narrow(0, storage.offset, storage.waiting.numel()).copy_(storage.waiting, /*non_blocking=*/true);
  }
  buffer.arrived.record(copies_);
  return buffer;
}

void SwappedWeights::FetchNext(int64_t block) {
  const auto waits = [](const auto& each) { return !each.second.storages.empty(); };
  int64_t next = Param::kNoBlock;
  if (upwards_) {
    const auto found = std::find_if(blocks_.upper_bound(block), blocks_.end(), waits);
    if (found != blocks_.end()) next = found->first;
  } else {
    const auto below = std::make_reverse_iterator(blocks_.lower_bound(block));
    const auto found = std::find_if(below, blocks_.rend(), waits);
    if (found != blocks_.rend()) next = found->first;
  }
  if (next == Param::kNoBlock || Find(next) != nullptr) return;
  if (Buffer* const free = FindFree(); free != nullptr) Fetch(next, *free);
}

void SwappedWeights::Bring(int part) {
  if (part == kFrame) return;
  Block& block = blocks_.at(part);
  if (block.uses++ > 0) return;
  ++calls_;
  if (part == blocks_.begin()->first) {
    upwards_ = true;
  } else if (part == blocks_.rbegin()->first) {
    upwards_ = false;
  } else if (part != previous_) {
    upwards_ = part > previous_;
  }
  previous_ = part;
  if (!block.storages.empty()) {
    Buffer* buffer = Find(part);
    if (buffer == nullptr) {
      Buffer* const free = FindFree();
      TORCH_CHECK(free != nullptr, "block ", part, " of the model is requested while ", kBuffers,
                  " other swapped blocks are in use");
      buffer = &Fetch(part, *free);
    }
    buffer->used = calls_;
    if (!base::Planted("swapped_block_not_awaited")) buffer->arrived.block(CurrentStream(device_));
    char* const memory = static_cast<char*>(buffer->memory.mutable_data_ptr());
    for (const Storage& storage : block.storages) {
      Place(storage.values, memory + storage.offset, storage.waiting.numel());
    }
  }
  FetchNext(part);
}

void SwappedWeights::Release(int part) {
  if (part == kFrame) return;
  Block& block = blocks_.at(part);
  TORCH_CHECK(block.uses > 0, "block ", part, " of the model is released more often than it was requested");
  if (--block.uses > 0 || block.storages.empty()) return;
  Find(part)->released.record(CurrentStream(device_));
  for (const Storage& storage : block.storages) Place(storage.values, nullptr, 0);
}

}  // namespace tessera::models
