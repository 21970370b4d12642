#include "models/adapters/plan/adapter_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/adapters/plan/adapter_config.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/weights/stored_types.h"

namespace tessera::models {
namespace {

constexpr char kModelFile[] = "adapter_model.safetensors";  // of PEFT
constexpr char kDiffusersFile[] = "pytorch_lora_weights.safetensors";
constexpr size_t kBlockBytes = size_t{4} << 20;  // a multiple of every element size

// Errors in the configuration name only the configuration, so this adds the adapter's name.
absl::Status WithName(const absl::Status& status, const std::string& name) {
  if (status.ok() || absl::StrContains(status.message(), name)) return status;
  absl::Status named(status.code(), absl::StrCat(name, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { named.SetPayload(type, payload); });
  return named;
}

}  // namespace

std::string TensorsInFolder(const std::string& folder) {
  std::error_code error;
  for (const char* file : {kModelFile, kDiffusersFile}) {
    const std::filesystem::path path = std::filesystem::path(folder) / file;
    if (std::filesystem::is_regular_file(path, error)) return path.string();
  }
  return "";
}

absl::StatusOr<AdapterFiles> FilesOf(const std::string& path) {
  std::error_code error;
  std::filesystem::path given(path);
  if (!given.has_filename()) given = given.parent_path();  // the path ends with a slash
  AdapterFiles files{.tensors = given.string(), .config = "", .name = given.filename().string()};
  const bool is_folder = std::filesystem::is_directory(given, error);
  if (is_folder) files.tensors = TensorsInFolder(given.string());
  if (files.tensors.empty()) {
    return AdapterError(AdapterFault::kNotAnAdapter, absl::StrCat("the folder ", files.name, " holds neither ",
                                                                  kModelFile, " nor ", kDiffusersFile));
  }
  if (std::filesystem::path(files.tensors).filename() == kModelFile) {
    const std::filesystem::path config = std::filesystem::path(files.tensors).parent_path() / kAdapterConfigFile;
    if (std::filesystem::exists(config, error)) files.config = config.string();
  }
  return files;
}

absl::StatusOr<PlannedAdapter> PlanFiles(const AdapterFiles& files, const AdapterNames& names) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(files.tensors, files.name);
  if (absl::IsInvalidArgument(file.status())) {
    return AdapterError(AdapterFault::kBrokenFile, std::string(file.status().message()));
  }
  if (!file.ok()) return file.status();
  std::optional<std::string> config;
  if (!files.config.empty()) {
    ASSIGN_OR_RETURN(std::string text, base::ReadWholeFile(files.config, kAdapterConfigFile, kMaxAdapterConfigBytes));
    config = std::move(text);
  }
  PlannedAdapter planned{.file = *std::move(file), .factors = {}, .embeddings = {}};
  ASSIGN_OR_RETURN(AdapterPlan plan, PlanAdapter(planned.file, config, names));
  planned.factors = std::move(plan.factors);
  planned.embeddings = std::move(plan.embeddings);
  return planned;
}

std::string EmbeddingsWarning(const std::string& adapter, const std::vector<std::string>& embeddings) {
  if (embeddings.empty()) return "";
  constexpr size_t kNamed = 8;
  std::string names = absl::StrJoin(embeddings.begin(), embeddings.begin() + std::min(kNamed, embeddings.size()), ", ");
  if (embeddings.size() > kNamed) absl::StrAppend(&names, " and ", embeddings.size() - kNamed, " more");
  return absl::StrCat("the adapter ", base::Quote(adapter),
                      " also holds trained embeddings, which are not used: ", names,
                      "; its trigger words may have no effect");
}

absl::Status CheckFinite(const SafetensorsFile& file, const StoredTensor& tensor, std::span<const std::byte> bytes) {
  if (AreFinite(tensor.type, bytes)) return absl::OkStatus();
  return AdapterError(AdapterFault::kNotFinite,
                      absl::StrCat(file.name(), ": the tensor ", tensor.name, " holds NaN or an infinity"));
}

absl::StatusOr<AdapterOrigin> CheckAdapter(const std::string& path, const std::string& name,
                                           const AdaptableModel& model) {
  ASSIGN_OR_RETURN(AdapterFiles files, FilesOf(path));
  files.name = name;
  const AdapterNames names(model);
  const absl::StatusOr<PlannedAdapter> plan = PlanFiles(files, names);
  if (!plan.ok()) return WithName(plan.status(), name);
  const PlannedAdapter& planned = *plan;
  std::set<const StoredTensor*> tensors;
  for (const PlannedFactors& factors : planned.factors) tensors.insert({factors.down, factors.up});
  std::vector<std::byte> block;
  for (const StoredTensor* tensor : tensors) {
    for (uint64_t at = 0; at < tensor->bytes(); at += block.size()) {
      block.resize(static_cast<size_t>(std::min<uint64_t>(kBlockBytes, tensor->bytes() - at)));
      RETURN_IF_ERROR(planned.file.Read(*tensor, at, block));
      RETURN_IF_ERROR(CheckFinite(planned.file, *tensor, block));
    }
  }
  AdapterOrigin origin{.step = 0, .embeddings = planned.embeddings};
  const auto step = planned.file.metadata().find(kStepKey);
  if (step != planned.file.metadata().end() && (!absl::SimpleAtoi(step->second, &origin.step) || origin.step < 0)) {
    origin.step = 0;
  }
  return origin;
}

}  // namespace tessera::models
