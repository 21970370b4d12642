// Frozen weights of a transformer's blocks that wait in the host's memory, for a device that cannot hold all of them:
// each block's are copied to the device before it runs, forwards and backwards.
//
// They pass through two buffers of the device, each as large as the largest of those blocks. While one block computes,
// the next one of them is on its way on a stream of its own, which follows the direction of the pass: from the first
// block upwards, from the last one downwards. Weights that never change are not copied back, and what is still in a
// buffer is not copied again.
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

// The host waits for nothing here: streams wait for each other.
class SwappedWeights final : public WeightResidency {
 public:
  static constexpr size_t kBuffers = 2;

  // Whether some of these wait (Param::waiting).
  static bool AreIn(std::span<const Param> params);

  // `params` are all of the model's on this rank, in its memory on `device`. Not in c10::InferenceMode.
  SwappedWeights(std::span<const Param> params, at::Device device);
  ~SwappedWeights() override;

  void Bring(int part) override;
  void Release(int part) override;

 private:
  // A storage of the model and what it holds, as bytes.
  struct Storage {
    at::Tensor values;  // shares the memory alone: neither version nor gradient
    at::Tensor waiting;
    int64_t offset = 0;  // in a buffer
  };
  // Without storages where its weights are always there.
  struct Block {
    std::vector<Storage> storages;
    int64_t bytes = 0;  // of a buffer
    int uses = 0;
  };
  struct Buffer {
    at::Tensor memory;
    c10::Event arrived, released;  // of the copy into it, and of the last use before that
    int64_t block = Param::kNoBlock;
    int64_t used = 0;  // at which call
  };

  static void AddStorage(Block& block, const at::Tensor& storage, const at::Tensor& waiting);
  // Where the block's weights are, or are on their way to; null: nowhere on the device.
  Buffer* Find(int64_t block);
  // The buffer that was used least recently of those of which no block is in use; null: none.
  Buffer* FindFree();
  // Issues the copies.
  Buffer& Fetch(int64_t block, Buffer& buffer);
  void FetchNext(int64_t block);

  const at::Device device_;
  std::map<int64_t, Block> blocks_;
  c10::Stream copies_;
  std::vector<Buffer> buffers_;
  int64_t previous_;  // block that was brought
  bool upwards_ = true;
  int64_t calls_ = 0;
};

}  // namespace tessera::models
