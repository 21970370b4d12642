#include "runtime/training/exports/weights_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/file_descriptor.h"
#include "base/files/private_files.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "models/loading/weight_loader.h"
#include "models/weights/safetensors_writer.h"
#include "models/weights/weight_folder.h"
#include "runtime/training/exports/adapter_file.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

constexpr char kTransformer[] = "transformer";
constexpr char kSchedulerConfig[] = "scheduler/scheduler_config.json";
constexpr char kWeightsName[] = "diffusion_pytorch_model.safetensors";
constexpr size_t kBufferBytes = size_t{16} << 20;
constexpr size_t kLinkedBytes = size_t{1} << 20;  // smaller files are copied

absl::Status Failure(const fs::path& path, const std::error_code& error) {
  const std::string message = absl::StrCat("cannot write \"", path.string(), "\": ", error.message());
  return error == std::errc::no_space_on_device ? absl::ResourceExhaustedError(message)
                                                : absl::UnavailableError(message);
}

// Whether the file holds weights or is an index of weight files.
bool IsWeights(const fs::path& path) {
  const std::string name = path.filename();
  return path.extension() == ".safetensors" || path.extension() == ".bin" ||
         name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
}

// A large file becomes a link to the file itself, not to a link to it. A small one is copied, so that editing a
// configuration here does not edit the base's.
absl::Status LinkFile(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const fs::path file = fs::canonical(from, error);
  const bool is_large = !error && fs::file_size(file, error) >= kLinkedBytes;
  if (!error && is_large) {
    fs::create_hard_link(file, to, error);
    if (!error) return absl::OkStatus();
  }
  fs::copy_file(from, to, error);
  if (error) return Failure(to, error);
  const base::FileDescriptor copy(::open(to.c_str(), O_RDONLY | O_CLOEXEC));
  if (copy.valid() && ::fsync(copy.get()) == 0) return absl::OkStatus();
  return Failure(to, std::error_code(errno, std::generic_category()));
}

// Links everything except hidden files and, if `weights` is false, weights; folders with all their contents.
absl::Status LinkFolder(const fs::path& from, const fs::path& to, bool weights) {
  RETURN_IF_ERROR(base::MakeFolder(to));
  std::error_code error;
  for (fs::directory_iterator entry(from, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.filename();
    if (name.starts_with(".")) continue;
    if (fs::is_directory(path)) {
      if (name != kTransformer || weights) RETURN_IF_ERROR(LinkFolder(path, to / name, true));
    } else if (weights || !IsWeights(path)) {
      RETURN_IF_ERROR(LinkFile(path, to / name));
    }
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot list \"", from.string(), "\": ", error.message()));
  return base::SyncFolder(to);
}

absl::Status CheckNames(const CheckpointIndex& index, const models::WeightFolder& base, const std::string& prefix) {
  std::vector<std::string> unknown;
  int found = 0;
  for (const auto& [name, tensor] : index.tensors) {
    if (!name.starts_with(prefix)) continue;
    ++found;
    const auto own = base.tensors().find(name.substr(prefix.size()));
    if (own == base.tensors().end() || own->second.tensor.shape != tensor.shape) unknown.push_back(base::Quote(name));
  }
  if (found == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has no tensor ", base::Quote(prefix + "…")));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the base model's transformer lacks tensors of the checkpoint, or has them ",
                   "in another shape: ", absl::StrJoin(unknown, ", ")));
}

// Copies a tensor of the base unchanged.
absl::Status CopyTensor(const models::WeightFolder& base, const models::WeightFolder::Location& location,
                        const std::string& name, models::SafetensorsWriter& writer) {
  std::vector<std::byte> buffer;
  for (uint64_t at = 0; at < location.tensor.bytes(); at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(kBufferBytes, location.tensor.bytes() - at));
    RETURN_IF_ERROR(base.Read(location, at, buffer));
    RETURN_IF_ERROR(writer.Append(name, buffer));
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(CheckpointReader& checkpoint, const WeightsExport& what, const std::string& path) {
  ASSIGN_OR_RETURN(const models::WeightFolder base,
                   models::WeightFolder::Open(absl::StrCat(what.base, "/", kTransformer), kTransformer));
  RETURN_IF_ERROR(CheckNames(checkpoint.index(), base, what.prefix));
  std::vector<models::TensorEntry> entries;
  for (const auto& [name, location] : base.tensors()) {
    entries.push_back({.name = name, .type = location.tensor.type, .shape = location.tensor.shape});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const models::TensorEntry& x, const models::TensorEntry& y) {
    return models::StoredTypeSize(x.type) > models::StoredTypeSize(y.type);
  });
  ASSIGN_OR_RETURN(
      models::SafetensorsWriter writer,
      models::SafetensorsWriter::Create(
          path, entries,
          {{"format", "pt"}, {kBaseDigestKey, what.base_digest}, {kStepKey, absl::StrCat(checkpoint.index().step)}}));
  for (const models::TensorEntry& entry : entries) {
    const std::optional<at::ScalarType> type = models::TorchType(entry.type);
    if (!type || !checkpoint.index().tensors.contains(what.prefix + entry.name)) {
      RETURN_IF_ERROR(CopyTensor(base, base.tensors().find(entry.name)->second, entry.name, writer));
      continue;
    }
    ASSIGN_OR_RETURN(at::Tensor values, checkpoint.Read(what.prefix + entry.name));
    values = values.to(*type).contiguous();
    RETURN_IF_ERROR(writer.Append(
        entry.name, std::as_bytes(std::span(static_cast<const char*>(values.data_ptr()), values.nbytes()))));
  }
  return writer.Finish().status();
}

// Writes the same text except for white space. Numbers that are not finite are written like in Python, which diffusers
// reads.
void Write(const base::Json& value, base::JsonWriter& json) {
  const std::optional<double> number = value.AsNumber();
  if (value.is_object()) {
    json.BeginObject();
    for (const base::JsonMember& member : value.members()) Write(member.value, json.Key(member.key));
    json.EndObject();
  } else if (value.is_array()) {
    json.BeginArray();
    for (const base::Json& item : value.items()) Write(item, json);
    json.EndArray();
  } else if (value.AsString() != nullptr) {
    json.String(*value.AsString());
  } else if (value.AsBool()) {
    json.Bool(*value.AsBool());
  } else if (value.AsInt()) {
    json.Int(*value.AsInt());
  } else if (number && !std::isfinite(*number)) {
    json.Json(std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity");
  } else if (number) {
    json.Number(*number);
  } else {
    json.Json("null");
  }
}

// Sets the prediction type in the scheduler's configuration in `folder`, which is a copy of the base's.
absl::Status WritePredictionType(const fs::path& folder, const std::string& prediction_type) {
  constexpr char kKey[] = "prediction_type";
  const std::string path = folder / kSchedulerConfig;
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, kSchedulerConfig, base::kMaxJsonBytes));
  ASSIGN_OR_RETURN(const base::Json config, base::ParseJson(text, kSchedulerConfig));
  base::JsonWriter json;
  json.BeginObject();
  for (const base::JsonMember& member : config.members()) {
    if (member.key != kKey) Write(member.value, json.Key(member.key));
  }
  json.Key(kKey).String(prediction_type);
  json.EndObject();
  return base::WriteFileAtomically(path, absl::StrCat(json.text(), "\n"));
}

absl::Status Fill(CheckpointReader& checkpoint, const WeightsExport& what, const fs::path& folder) {
  const fs::path base(what.base);
  RETURN_IF_ERROR(LinkFolder(base, folder, false));
  RETURN_IF_ERROR(base::MakeFolder(folder / kTransformer));
  std::error_code error;
  for (fs::directory_iterator entry(base / kTransformer, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (fs::is_regular_file(path) && !IsWeights(path) && !path.filename().string().starts_with(".")) {
      RETURN_IF_ERROR(LinkFile(path, folder / kTransformer / path.filename()));
    }
  }
  if (!what.prediction_type.empty()) RETURN_IF_ERROR(WritePredictionType(folder, what.prediction_type));
  RETURN_IF_ERROR(WriteWeights(checkpoint, what, folder / kTransformer / kWeightsName));
  return base::SyncFolder(folder);
}

}  // namespace

absl::Status ExportWeights(CheckpointReader& checkpoint, const WeightsExport& what) {
  fs::path folder(what.folder);
  if (!folder.has_filename()) folder = folder.parent_path();  // the path ends with a slash
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    return absl::AlreadyExistsError(absl::StrCat("\"", what.folder, "\" exists already"));
  }
  const fs::path above = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  const fs::path partial = above / absl::StrCat(".", folder.filename().string(), ".partial");
  fs::remove_all(partial, error);
  absl::Status status = Fill(checkpoint, what, partial);
  if (status.ok() && ::rename(partial.c_str(), folder.c_str()) != 0) {
    status = Failure(folder, std::error_code(errno, std::generic_category()));
  }
  if (!status.ok()) {
    fs::remove_all(partial, error);
    return status;
  }
  return base::SyncFolder(above);
}

}  // namespace tessera::runtime
