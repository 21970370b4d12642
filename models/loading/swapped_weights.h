// SwappedWeights keeps frozen weights of a transformer's blocks in the host's memory, for a device that cannot hold all
// of them. The weights of each block are copied to the device before it runs, in the forward and the backward pass.
//
// The copies use two device buffers, each as large as the largest of those blocks. While one block computes, the next
// one is copied on a separate stream. The prefetch follows the direction of the pass: upwards from the first block, or
// downwards from the last. The weights never change, so they are not copied back, and weights that are still in a
// buffer are not copied again.
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

// The host does not wait for copies: streams wait for each other.
class SwappedWeights final : public WeightResidency {
 public:
  static constexpr size_t kBuffers = 2;

  // Whether any of these parameters waits in the host's memory (Param::waiting).
  static bool AreIn(std::span<const Param> params);

  // `params` are all parameters of the model on this rank, whose memory is on `device`. Not in c10::InferenceMode.
  SwappedWeights(std::span<const Param> params, at::Device device);
  ~SwappedWeights() override;

  void Bring(int part) override;
  void Release(int part) override;

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
    int64_t used = 0;  // the value of `calls_` at its last use
  };

  static void AddStorage(Block& block, const at::Tensor& storage, const at::Tensor& waiting);
  // Returns the buffer that holds the block's weights or is being filled with them; null if there is none.
  Buffer* Find(int64_t block);
  // Returns the least recently used buffer that no block is using; null if there is none.
  Buffer* FindFree();
  // Issues the copies.
  Buffer& Fetch(int64_t block, Buffer& buffer);
  void FetchNext(int64_t block);

  const at::Device device_;
  std::map<int64_t, Block> blocks_;
  c10::Stream copies_;
  std::vector<Buffer> buffers_;
  int64_t previous_;  // the block that was brought last
  bool upwards_ = true;
  int64_t calls_ = 0;
};

}  // namespace tessera::models
