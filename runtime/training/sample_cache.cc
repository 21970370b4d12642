#include "runtime/training/sample_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/loading/torch_types.h"
#include "models/loading/weight_loader.h"
#include "models/weights/safetensors.h"
#include "models/weights/safetensors_writer.h"

namespace tessera::runtime {
namespace {

constexpr char kName[] = "a cached encoding";
constexpr size_t kLengthBytes = 8;

bool AreFinite(const NamedTensors& tensors) {
  return std::ranges::all_of(tensors,
                             [](const auto& named) { return at::isfinite(named.second).all().template item<bool>(); });
}

}  // namespace

std::string TensorBytes(const NamedTensors& tensors) {
  std::vector<models::TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<models::StoredType> type = models::StoredTypeOf(tensor.scalar_type());
    TORCH_CHECK(type.has_value(), "a tensor has a type that files cannot store");
    entries.push_back({.name = name, .type = *type, .shape = tensor.sizes().vec()});
  }
  const absl::StatusOr<std::string> header = models::SafetensorsHeaderBytes(entries, {}, kName);
  TORCH_CHECK(header.ok(), std::string(header.status().message()));
  std::string bytes = *header;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bytes;
}

std::optional<NamedTensors> TensorsOf(std::string_view bytes) {
  const absl::StatusOr<uint64_t> length =
      models::ParseSafetensorsHeaderLength(bytes.substr(0, kLengthBytes), bytes.size(), kName);
  if (!length.ok()) return std::nullopt;
  const absl::StatusOr<models::SafetensorsHeader> header =
      models::ParseSafetensorsHeader(bytes.substr(kLengthBytes, *length), bytes.size(), kName);
  if (!header.ok()) return std::nullopt;
  NamedTensors tensors;
  for (const models::StoredTensor& stored : header->tensors) {
    const std::optional<at::ScalarType> type = models::TorchType(stored.type);
    if (!type) return std::nullopt;
    const at::Tensor tensor = at::empty(stored.shape, *type);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + stored.begin, stored.bytes());
    tensors[stored.name] = tensor;
  }
  return tensors;
}

const ContentCache* SampleCache::Open() {
  if (!cache_ && usable_) {
    absl::StatusOr<ContentCache> cache = ContentCache::Open(folder_);
    usable_ = cache.ok();
    if (cache.ok()) {
      cache_ = *std::move(cache);
    } else {
      Warn(cache.status());
    }
  }
  return cache_ ? &*cache_ : nullptr;
}

void SampleCache::Warn(const absl::Status& status) {
  writable_ = false;
  warning_ = absl::StrCat("encoded pictures and captions stay in memory and are not kept for the next start: ",
                          status.message());
}

std::optional<NamedTensors> SampleCache::Find(const std::string& key) {
  const ContentCache* cache = Open();
  if (cache == nullptr) return std::nullopt;
  const std::optional<std::string> bytes = cache->Find(key);
  std::optional<NamedTensors> tensors = bytes ? TensorsOf(*bytes) : std::nullopt;
  return tensors && AreFinite(*tensors) ? tensors : std::nullopt;
}

void SampleCache::Keep(const std::string& key, const NamedTensors& tensors) {
  const ContentCache* cache = Open();
  if (cache == nullptr || !writable_) return;
  if (const absl::Status kept = cache->Keep(key, TensorBytes(tensors)); !kept.ok()) Warn(kept);
}

}  // namespace tessera::runtime
