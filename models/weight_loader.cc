#include "models/weight_loader.h"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;
constexpr size_t kListed = 40;  // names of each kind in an error; the rest is counted

std::string Shape(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

std::string Section(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  const size_t shown = std::min(lines.size(), kListed);
  std::string text = absl::StrCat("\n  ", title, " (", lines.size(), "):");
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, "\n    ", lines[i]);
  if (shown < lines.size()) absl::StrAppend(&text, "\n    and ", lines.size() - shown, " more");
  return text;
}

// Where each parameter lies in the folder: its own name, or else an alias.
const WeightFolder::Location* Locate(const WeightFolder& folder, const ParamSpec& spec) {
  if (const auto it = folder.tensors().find(spec.name); it != folder.tensors().end()) return &it->second;
  for (const std::string& alias : spec.aliases) {
    if (const auto it = folder.tensors().find(alias); it != folder.tensors().end()) return &it->second;
  }
  return nullptr;
}

absl::Status ReadTensor(const WeightFolder& folder, const WeightFolder::Location& location, at::Tensor place,
                        std::vector<std::byte>& buffer) {
  const at::ScalarType stored = *TorchType(location.tensor.type);
  if (stored == place.scalar_type() && place.device().is_cpu()) {
    return folder.Read(location, 0, {static_cast<std::byte*>(place.data_ptr()), place.nbytes()});
  }
  const int64_t size = static_cast<int64_t>(c10::elementSize(stored)), step = kBufferBytes / size;
  at::Tensor flat = place.view(-1);
  for (int64_t begin = 0; begin < flat.numel(); begin += step) {
    const int64_t count = std::min(step, flat.numel() - begin);
    buffer.resize(static_cast<size_t>(count * size));
    if (absl::Status read = folder.Read(location, static_cast<uint64_t>(begin * size), buffer); !read.ok()) return read;
    flat.narrow(0, begin, count).copy_(at::from_blob(buffer.data(), {count}, stored));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<at::ScalarType> TorchType(StoredType type) {
  switch (type) {
    case StoredType::kF64:
      return at::kDouble;
    case StoredType::kF32:
      return at::kFloat;
    case StoredType::kF16:
      return at::kHalf;
    case StoredType::kBF16:
      return at::kBFloat16;
    case StoredType::kI64:
      return at::kLong;
    case StoredType::kI32:
      return at::kInt;
    case StoredType::kU8:
      return at::kByte;
    case StoredType::kBool:
      return at::kBool;
    default:
      return std::nullopt;
  }
}

absl::Status CheckWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component) {
  std::vector<std::string> missing, unexpected, misshapen;
  std::set<std::string, std::less<>> known(table.ignored().begin(), table.ignored().end());
  for (const Param& param : table.params()) {
    known.insert(param.spec.name);
    known.insert(param.spec.aliases.begin(), param.spec.aliases.end());
    const WeightFolder::Location* location = Locate(folder, param.spec);
    if (location == nullptr) {
      missing.push_back(absl::StrCat(param.spec.name, " ", Shape(param.spec.shape)));
    } else if (location->tensor.shape != param.spec.shape) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": ", Shape(location->tensor.shape), " in the file, ",
                                       Shape(param.spec.shape), " by the configuration"));
    } else if (const auto type = TorchType(location->tensor.type); !type || !at::isFloatingType(*type)) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": stored as ",
                                       std::string(StoredTypeName(location->tensor.type)),
                                       "; weights must be F64, F32, F16 or BF16"));
    }
  }
  for (const auto& [name, location] : folder.tensors()) {
    if (!known.contains(name)) unexpected.push_back(absl::StrCat(name, " ", Shape(location.tensor.shape)));
  }
  if (missing.empty() && unexpected.empty() && misshapen.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(component, ": the weights do not fit config.json",
                                                 Section("missing", missing), Section("unexpected", unexpected),
                                                 Section("of another shape or type", misshapen)));
}

absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component) {
  if (absl::Status status = CheckWeights(folder, table, component); !status.ok()) return status;
  std::vector<std::byte> buffer;
  for (const Param& param : table.params()) {
    if (absl::Status read = ReadTensor(folder, *Locate(folder, param.spec), param.Value(), buffer); !read.ok())
      return read;
  }
  return absl::OkStatus();
}

}  // namespace tessera
