#include "models/loading/swapped_weights.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <limits>

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

// Returns the bytes of a tensor without gaps, in the order in which they are stored.
at::Tensor BytesOf(const at::Tensor& values) {
  const int64_t size = values.element_size();
  return at::empty({0}, values.options().dtype(at::kByte))
      .set_(values.storage(), values.storage_offset() * size, {values.numel() * size});
}

}  // namespace

bool SwappedWeights::AreIn(std::span<const Param> params) {
  return std::ranges::any_of(params, [](const Param& param) { return param.waiting.defined(); });
}

SwappedWeights::SwappedWeights(std::span<const Param> params, at::Device device, SwappedWeightsOptions options)
    : device_(device),
      options_(options),
      copies_(base::Planted("swapped_block_on_the_computing_stream")
                  ? CurrentStream(device)
                  : c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      previous_(Param::kNoBlock) {
  const at::NoGradGuard no_gradients;
  for (const Param& param : params) {
    Block& block = param.block == Param::kNoBlock ? frame_ : blocks_[param.block];
    if (!param.waiting.defined()) continue;
    AddStorage(block, param.storage, param.waiting);
    if (param.scales.defined()) AddStorage(block, param.scales, param.waiting_scales);
    is_pinned_ = is_pinned_ && param.waiting.is_pinned();
    holds_modulations_ = holds_modulations_ || (param.block != Param::kNoBlock && !param.spec.partial.sequence);
  }
  for (const auto& [index, block] : blocks_) {
    largest_ = std::max(largest_, block.bytes);
    waiting_ += block.storages.empty() ? 0 : 1;
  }
  if (frame_.storages.empty()) MakeBuffers();
}

SwappedWeights::~SwappedWeights() {
  for (const auto& [index, block] : blocks_) {
    for (const Storage& storage : block.storages) Place(storage.values, nullptr, 0);
  }
  for (const Storage& storage : frame_.storages) Place(storage.values, nullptr, 0);
  // Copies in progress must end before the buffers are freed.
  for (const Buffer& buffer : buffers_) {
    try {
      if (buffer.block != Param::kNoBlock) buffer.arrived.synchronize();
    } catch (const c10::Error&) {  // the device failed, so no copy is in progress
    }
  }
}

int64_t SwappedWeights::device_bytes() const {
  return frame_.bytes + largest_ * static_cast<int64_t>(std::min(options_.buffers, waiting_));
}

void SwappedWeights::AddStorage(Block& block, const at::Tensor& storage, const at::Tensor& waiting) {
  const auto is_known = [&](const Storage& known) { return known.values.storage().is_alias_of(storage.storage()); };
  if (std::ranges::any_of(block.storages, is_known)) return;
  block.storages.push_back({.values = storage.variable_data(), .waiting = BytesOf(waiting), .offset = block.bytes});
  const int64_t bytes = block.storages.back().waiting.numel();
  block.bytes += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

SwappedWeights::Buffer SwappedWeights::MakeBuffer(int64_t bytes) const {
  // The caller may be in inference mode, in which a view of the buffer would be an inference tensor.
  const c10::InferenceMode ordinary(false);
  Buffer buffer{.memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_)),
                .arrived = c10::Event(device_.type()),
                .released = c10::Event(device_.type())};
  // The previous owner of the memory used it on the current stream.
  buffer.released.record(CurrentStream(device_));
  return buffer;
}

void SwappedWeights::MakeBuffers() {
  while (buffers_.size() < std::min(options_.buffers, waiting_)) buffers_.push_back(MakeBuffer(largest_));
}

void SwappedWeights::DropBuffers() {
  for (const Buffer& buffer : buffers_) {
    if (buffer.block != Param::kNoBlock) buffer.arrived.block(CurrentStream(device_));
  }
  buffers_.clear();
  frame_buffer_.clear();
}

SwappedWeights::Buffer* SwappedWeights::Find(int64_t block) {
  const auto found = std::ranges::find(buffers_, block, &Buffer::block);
  return found == buffers_.end() ? nullptr : &*found;
}

int64_t SwappedWeights::Distance(int64_t current, int64_t block) const {
  if (block == Param::kNoBlock) return std::numeric_limits<int64_t>::max();
  const int64_t first = blocks_.begin()->first, last = blocks_.rbegin()->first;
  if (options_.order == BlockOrder::kUpwards) {
    return block >= current ? block - current : std::numeric_limits<int64_t>::max();
  }
  if (options_.order == BlockOrder::kCyclic) {
    return block > current ? block - current : block - current + last - first + 1;
  }
  if (block == current) return 0;
  if (upwards_) return block > current ? block - current : (last - current) + (last - block);
  return block < current ? current - block : (current - first) + (block - first);
}

SwappedWeights::Buffer* SwappedWeights::FindFree(int64_t current) {
  Buffer* free = nullptr;
  int64_t furthest = -1;
  for (Buffer& buffer : buffers_) {
    if (buffer.block != Param::kNoBlock && blocks_.at(buffer.block).uses > 0) continue;
    const int64_t distance = Distance(current, buffer.block);
    if (distance <= furthest) continue;
    free = &buffer;
    furthest = distance;
  }
  return free;
}

int64_t SwappedWeights::NextWaiting(int64_t block) const {
  const auto waits = [](const auto& each) { return !each.second.storages.empty(); };
  if (options_.order == BlockOrder::kThereAndBack && !upwards_) {
    const auto below = std::make_reverse_iterator(blocks_.lower_bound(block));
    const auto found = std::find_if(below, blocks_.rend(), waits);
    return found == blocks_.rend() ? Param::kNoBlock : found->first;
  }
  auto found = std::find_if(blocks_.upper_bound(block), blocks_.end(), waits);
  if (found == blocks_.end() && options_.order == BlockOrder::kCyclic) {
    found = std::ranges::find_if(blocks_, waits);
  }
  return found == blocks_.end() ? Param::kNoBlock : found->first;
}

void SwappedWeights::Fetch(const Block& block, Buffer& buffer) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_gradients;
  const c10::StreamGuard on_own_stream(copies_);
  if (!base::Planted("swapped_block_overwritten_in_use")) buffer.released.block(copies_);
  for (const Storage& storage : block.storages) {
    buffer.memory.narrow(0, storage.offset, storage.waiting.numel()).copy_(storage.waiting, /*non_blocking=*/true);
  }
  buffer.arrived.record(copies_);
}

void SwappedWeights::FetchAhead(int64_t current) {
  int64_t next = current;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    next = NextWaiting(next);
    if (next == Param::kNoBlock || next == current) return;
    if (Find(next) != nullptr) continue;
    Buffer* const free = FindFree(current);
    if (free == nullptr || Distance(current, free->block) <= Distance(current, next)) return;
    free->block = next;
    Fetch(blocks_.at(next), *free);
  }
}

void SwappedWeights::Use(Block& block, Buffer& buffer) const {
  if (!base::Planted("swapped_block_not_awaited")) buffer.arrived.block(CurrentStream(device_));
  char* const memory = static_cast<char*>(buffer.memory.mutable_data_ptr());
  for (const Storage& storage : block.storages) {
    Place(storage.values, memory + storage.offset, storage.waiting.numel());
  }
}

void SwappedWeights::BringFrame() {
  if (frame_.storages.empty() || frame_.uses++ > 0) return;
  frame_buffer_.push_back(MakeBuffer(frame_.bytes));
  Fetch(frame_, frame_buffer_.front());
  MakeBuffers();
  Use(frame_, frame_buffer_.front());
}

void SwappedWeights::ReleaseFrame() {
  if (frame_.storages.empty()) return;
  TORCH_CHECK(frame_.uses > 0, "weights outside the blocks are released more often than they were requested");
  if (--frame_.uses > 0) return;
  for (const Storage& storage : frame_.storages) Place(storage.values, nullptr, 0);
  DropBuffers();
}

void SwappedWeights::Bring(int part) {
  if (part == kFrame) return BringFrame();
  Block& block = blocks_.at(part);
  if (block.uses++ > 0) return;
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
      buffer = FindFree(part);
      TORCH_CHECK(buffer != nullptr, "block ", part, " of the model is requested while ", buffers_.size(),
                  " other swapped blocks are in use");
      buffer->block = part;
      Fetch(block, *buffer);
    }
    Use(block, *buffer);
  }
  if (is_pinned_) FetchAhead(part);
}

void SwappedWeights::Release(int part) {
  if (part == kFrame) return ReleaseFrame();
  Block& block = blocks_.at(part);
  TORCH_CHECK(block.uses > 0, "block ", part, " of the model is released more often than it was requested");
  if (--block.uses > 0) return;
  if (!block.storages.empty()) {
    Find(part)->released.record(CurrentStream(device_));
    for (const Storage& storage : block.storages) Place(storage.values, nullptr, 0);
  }
  if (!is_pinned_) FetchAhead(part);
}

}  // namespace tessera::models
