#include "models/adapters/adapter.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/file_identity.h"
#include "base/files/sha256.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/adapters/plan/adapter_files.h"
#include "models/loading/weight_loader.h"

namespace tessera::models {
namespace {

constexpr size_t kDigestChunk = size_t{4} << 20;

// Reads the factors of a plan. Each tensor of the file is read once.
class FactorReader {
 public:
  FactorReader(const SafetensorsFile& file, const AdapterPlace& place) : file_(file), place_(place) {}

  // Returns the whole tensor in the place's dtype, on the host.
  absl::StatusOr<at::Tensor> Read(const StoredTensor& tensor) {
    at::Tensor& read = read_[&tensor];
    if (read.defined()) return read;
    const at::Tensor stored = at::empty(tensor.shape, *TorchType(tensor.type));
    const std::span<std::byte> bytes(static_cast<std::byte*>(stored.data_ptr()), stored.nbytes());
    RETURN_IF_ERROR(file_.Read(tensor, 0, bytes));
    RETURN_IF_ERROR(CheckFinite(file_, tensor, bytes));
    read = stored.to(place_.dtype);
    // A number that is finite in the file may overflow the model's dtype.
    if (c10::elementSize(place_.dtype) < c10::elementSize(*TorchType(tensor.type)) &&
        !at::isfinite(read).all().item<bool>()) {
      return AdapterError(AdapterFault::kNotFinite, absl::StrCat(file_.name(), ": the tensor ", tensor.name,
                                                                 " holds numbers too large for the model's type"));
    }
    return read;
  }

  // Returns the part on the device of its component, in storage that holds nothing else.
  at::Tensor Placed(const at::Tensor& part, bool of_transformer) const {
    const at::Tensor dense = part.is_contiguous() && part.storage().nbytes() == part.nbytes() ? part : part.clone();
    return dense.to(of_transformer ? place_.device : place_.text_device);
  }

 private:
  const SafetensorsFile& file_;
  const AdapterPlace& place_;
  std::map<const StoredTensor*, at::Tensor> read_;
};

at::Tensor RowsOf(const PlannedFactors& planned, const at::Tensor& up) {
  const int64_t half = up.size(0) / 2;
  const at::Tensor ordered = planned.halves_exchanged ? at::cat({up.narrow(0, half, half), up.narrow(0, 0, half)}) : up;
  return ordered.narrow(0, planned.first_row, planned.module->out);
}

absl::Status HashFile(const std::string& path, const std::string& name, base::Sha256& sha) {
  absl::StatusOr<base::ReadOnlyFile> file = base::ReadOnlyFile::Open(path, name);
  if (!file.ok()) return file.status();
  std::vector<std::byte> chunk;
  for (uint64_t offset = 0; offset < file->size(); offset += chunk.size()) {
    chunk.resize(static_cast<size_t>(std::min<uint64_t>(kDigestChunk, file->size() - offset)));
    RETURN_IF_ERROR(file->Read(offset, chunk));
    sha.Update({reinterpret_cast<const char*>(chunk.data()), chunk.size()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DigestOf(const AdapterFiles& files) {
  base::Sha256 sha;
  RETURN_IF_ERROR(HashFile(files.tensors, files.name, sha));
  if (!files.config.empty()) RETURN_IF_ERROR(HashFile(files.config, files.name, sha));
  return sha.Finish();
}

absl::StatusOr<Adapter> ReadFiles(const AdapterFiles& files, const AdaptableModel& model, const AdapterPlace& place) {
  const AdapterNames names(model);
  ASSIGN_OR_RETURN(const PlannedAdapter plan, PlanFiles(files, names));
  Adapter adapter{.embeddings = plan.embeddings};
  const auto prediction_type = plan.file.metadata().find(kPredictionTypeKey);
  if (prediction_type != plan.file.metadata().end()) adapter.prediction_type = prediction_type->second;
  FactorReader reader(plan.file, place);
  std::map<const void*, at::Tensor> placed;  // so that factors shared by several modules stay shared
  for (const PlannedFactors& planned : plan.factors) {
    ASSIGN_OR_RETURN(const at::Tensor down, reader.Read(*planned.down));
    ASSIGN_OR_RETURN(const at::Tensor up, reader.Read(*planned.up));
    const bool of_transformer = planned.component == "transformer";
    if (of_transformer ? planned.module->elsewhere : !place.text_encoders) continue;
    parallel::LowRankFactors own = ShardOf({.a = down, .b = RowsOf(planned, up), .scale = planned.scale},
                                           *planned.module, of_transformer ? place.tensor : TensorShard());
    if (own.a.is_same(down)) {
      at::Tensor& shared = placed[planned.down];
      if (!shared.defined()) shared = reader.Placed(down, of_transformer);
      own.a = shared;
    } else {
      own.a = reader.Placed(own.a, of_transformer);
    }
    own.b = reader.Placed(own.b, of_transformer);
    adapter.bytes += static_cast<int64_t>(own.a.nbytes() + own.b.nbytes());
    adapter.components[planned.component].emplace(planned.module->name, std::move(own));
  }
  return adapter;
}

}  // namespace

parallel::LowRankFactors ShardOf(const parallel::LowRankFactors& whole, const ProductSpec& module,
                                 const TensorShard& shard) {
  if (shard.size == 1 || module.role == LinearRole::kReplicated) return whole;
  parallel::LowRankFactors own = whole;
  const auto cut = [&](const at::Tensor& factor, int64_t dim) {
    std::vector<at::Tensor> runs;
    for (const ChannelRange& run : shard.ranges(factor.size(dim), module.parts)) {
      const int64_t begin = dim == 0 && base::Planted("low_rank_up_not_sharded") ? 0 : run.begin;
      runs.push_back(factor.narrow(dim, begin, run.count));
    }
    return runs.size() == 1 ? runs.front() : at::cat(runs, dim);
  };
  if (module.role == LinearRole::kColumn) {
    own.b = cut(whole.b, 0);
  } else {
    own.a = cut(whole.a, 1).contiguous();
  }
  return own;
}

absl::StatusOr<Adapter> ReadAdapter(const std::string& path, const AdaptableModel& model, const AdapterPlace& place) {
  ASSIGN_OR_RETURN(const AdapterFiles files, FilesOf(path));
  const base::FileIdentity tensors = base::IdentityOf(files.tensors), config = base::IdentityOf(files.config);
  ASSIGN_OR_RETURN(Adapter adapter, ReadFiles(files, model, place));
  ASSIGN_OR_RETURN(adapter.digest, DigestOf(files));
  if (tensors == base::IdentityOf(files.tensors) && config == base::IdentityOf(files.config)) return adapter;
  return absl::AbortedError(absl::StrCat(files.name, " changed while it was read; try again"));
}

absl::StatusOr<std::string> AdapterDigest(const std::string& path) {
  ASSIGN_OR_RETURN(const AdapterFiles files, FilesOf(path));
  return DigestOf(files);
}

SharedAdapters AddAdapters(std::span<const ScaledAdapter> adapters) {
  AdapterSet set;
  for (const ScaledAdapter& scaled : adapters) {
    if (scaled.scale == 0) continue;
    const Adapter& adapter = scaled.adapter;
    if (!adapter.prediction_type.empty()) set.prediction_type = adapter.prediction_type;
    std::string warning = EmbeddingsWarning(scaled.name, adapter.embeddings);
    if (!warning.empty()) set.warnings.push_back(std::move(warning));
    absl::StrAppend(&set.key, adapter.digest, "*", absl::Hex(std::bit_cast<uint64_t>(scaled.scale)), ";");
    for (const auto& [component, modules] : adapter.components) {
      for (const auto& [module, factors] : modules) {
        set.components[component].Add(module, {.a = factors.a, .b = factors.b, .scale = factors.scale * scaled.scale});
      }
    }
  }
  return set.key.empty() ? nullptr : std::make_shared<const AdapterSet>(std::move(set));
}

}  // namespace tessera::models
