// SampleCache keeps the encodings of a run's pictures and captions on disk, for its steps and its next start.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/training/data/content_cache.h"

namespace tessera::runtime {

using NamedTensors = std::map<std::string, at::Tensor>;

// Convert tensors to the bytes of a safetensors file and back. TensorsOf returns nothing for bytes that are not such a
// file or have a type that LibTorch lacks. On the host.
std::string TensorBytes(const NamedTensors& tensors);
std::optional<NamedTensors> TensorsOf(std::string_view bytes);

// Used by one thread. A cache that cannot be used, or can no longer be written, costs time but does not change results:
// it finds and keeps nothing, and warns once.
class SampleCache final {
 public:
  // `folder` is created at the first lookup.
  explicit SampleCache(std::string folder) : folder_(std::move(folder)) {}

  // Keys are those of ContentKey. A value that is not finite, which no encoder returns, counts as missing.
  std::optional<NamedTensors> Find(const std::string& key);
  void Keep(const std::string& key, const NamedTensors& tensors);

  // The folder itself, for reader threads; nothing if it cannot be used.
  std::optional<ContentCache> folder() { return Open() == nullptr ? std::nullopt : cache_; }

  // Returns the problem since the last call; empty if there was none.
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
