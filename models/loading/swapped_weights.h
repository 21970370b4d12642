// SwappedWeights keeps weights of a component in the host's memory, for a device that cannot hold all of them. The
// weights of each block are copied to the device before it runs, on a separate stream and ahead of their use.
//
// The copies use a number of device buffers, each as large as the largest of those blocks. One holds the block that
// computes; the others are filled with the blocks that the pass uses next. A block stays in its buffer until a block
// that is used earlier needs it, so weights that are still in a buffer are not copied again. The weights never change
// and are not copied back.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/loading/param_table.h"
#include "models/loading/weight_residency.h"

namespace tessera::models {

// The order in which passes use a component's blocks.
enum class BlockOrder : uint8_t {
  kThereAndBack,  // upwards, then downwards for gradients
  kCyclic,        // upwards, pass after pass
  kUpwards,       // upwards, once
};

struct SwappedWeightsOptions {
  size_t buffers = 2;
  BlockOrder order = BlockOrder::kThereAndBack;
};

// The host does not wait for copies from pinned memory: streams wait for each other. A copy from pageable memory keeps
// the host busy, so it is issued after the operators of the block before it.
class SwappedWeights final : public WeightResidency {
 public:
  // Whether any of these parameters waits in the host's memory (Param::waiting).
  static bool AreIn(std::span<const Param> params);

  // `params` are all parameters of the component on this rank, whose memory is on `device`. If parameters outside all
  // blocks wait, the component is on the device only while kFrame is brought, and so are the buffers. Not in
  // c10::InferenceMode.
  SwappedWeights(std::span<const Param> params, at::Device device, SwappedWeightsOptions options = {});
  ~SwappedWeights() override;

  void Bring(int part) override;
  void Release(int part) override;
  bool holds_modulations() const override { return holds_modulations_; }

  // Bytes of the buffers and of waiting parameters outside all blocks, while they are on the device.
  int64_t device_bytes() const;

 private:
  // A storage of the model and its contents, as bytes.
  struct Storage {
    at::Tensor values;  // shares the memory only, neither version counter nor gradient
    at::Tensor waiting;
    int64_t offset = 0;  // in a buffer
  };
  // Has no storages if its weights are always on the device.
  struct Block {
    std::vector<Storage> storages;
    int64_t bytes = 0;  // of a buffer
    int uses = 0;
  };
  struct Buffer {
    at::Tensor memory;
    c10::Event arrived, released;  // of the copy into the buffer, and of the last use before that copy
    int64_t block = Param::kNoBlock;
  };

  static void AddStorage(Block& block, const at::Tensor& storage, const at::Tensor& waiting);
  Buffer MakeBuffer(int64_t bytes) const;
  void MakeBuffers();
  // Frees the device's memory after the work that was issued.
  void DropBuffers();
  void BringFrame();
  void ReleaseFrame();
  // Returns the buffer that holds the block's weights or is being filled with them; null if there is none.
  Buffer* Find(int64_t block);
  // Returns the buffer whose block is used last of all that are not in use; null if all are.
  Buffer* FindFree(int64_t current);
  // How many blocks after `current` the pass uses `block`.
  int64_t Distance(int64_t current, int64_t block) const;
  // Returns the waiting block that a pass uses next after this one; kNoBlock if there is none.
  int64_t NextWaiting(int64_t block) const;
  // Issues the copies.
  void Fetch(const Block& block, Buffer& buffer) const;
  void FetchAhead(int64_t current);
  void Use(Block& block, Buffer& buffer) const;

  const at::Device device_;
  const SwappedWeightsOptions options_;
  std::map<int64_t, Block> blocks_;
  Block frame_;
  int64_t largest_ = 0;  // bytes of a buffer
  size_t waiting_ = 0;   // blocks
  bool holds_modulations_ = false;
  bool is_pinned_ = true;
  c10::Stream copies_;
  std::vector<Buffer> buffers_, frame_buffer_;
  int64_t previous_;  // the block that was brought last
  bool upwards_ = true;
};

}  // namespace tessera::models
