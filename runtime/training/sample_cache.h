// What encoders made of a run's pictures and captions, kept on the disk for its steps and its next start.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/training/data/content_cache.h"

namespace tessera::runtime {

using NamedTensors = std::map<std::string, at::Tensor>;

// Tensors as the bytes of a safetensors file, and back; nothing for bytes that are no such file or of a type that
// LibTorch lacks. On the host.
std::string TensorBytes(const NamedTensors& tensors);
std::optional<NamedTensors> TensorsOf(std::string_view bytes);

// Used by one thread. A cache that cannot be used, or written any more, costs time and no result: it finds nothing and
// keeps nothing, and says so once.
class SampleCache final {
 public:
  // `folder` is made when something is looked up.
  explicit SampleCache(std::string folder) : folder_(std::move(folder)) {}

  // Keys are those of ContentKey. What is not finite, which no encoder's result is, counts as none.
  std::optional<NamedTensors> Find(const std::string& key);
  void Keep(const std::string& key, const NamedTensors& tensors);

  // The folder itself, for threads that read; nothing where it cannot be used.
  std::optional<ContentCache> folder() { return Open() == nullptr ? std::nullopt : cache_; }

  // What has gone wrong since the last call; empty: nothing.
  std::string TakeWarning() { return std::exchange(warning_, ""); }

 private:
  const ContentCache* Open();
  void Warn(const absl::Status& status);

  const std::string folder_;
  std::optional<ContentCache> cache_;
  bool usable_ = true, writable_ = true;
  std::string warning_;
};

}  // namespace tessera::runtime
