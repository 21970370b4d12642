#include "models/weights/weight_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/weights/file_kind.h"

namespace tessera::models {

namespace {

constexpr std::string_view kExtension = ".safetensors";
constexpr std::string_view kIndexExtension = ".safetensors.index.json";
constexpr size_t kMaxShardIndexBytes = kMaxSafetensorsHeaderBytes;
constexpr size_t kMaxProblems = 20;

using FileNames = std::set<std::string>;

absl::StatusOr<FileNames> ListFolder(const std::string& folder, const std::string& name) {
  std::error_code error;
  FileNames names;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.insert(entry->path().filename().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list folder ", name));
  return names;
}

struct WeightsFile {
  std::string name;
  bool is_index = false;
};

std::optional<WeightsFile> ChooseFile(const FileNames& names) {
  constexpr const char* kStems[] = {"diffusion_pytorch_model", "model"};
  std::set<std::string> known_indices;
  std::optional<WeightsFile> chosen;
  const auto consider = [&](const std::string& name, bool is_index) {
    if (is_index) known_indices.insert(name);
    if (!chosen && names.contains(name)) chosen = WeightsFile{name, is_index};
  };
  for (const std::string variant : {"", ".fp16", ".bf16"}) {
    for (const std::string stem : kStems) consider(stem + variant + ".safetensors", false);
    for (const std::string stem : kStems) {
      consider(stem + ".safetensors.index" + variant + ".json", true);
      consider(stem + variant + ".safetensors.index.json", true);
    }
  }
  for (const std::string& name : names) {
    if (name.ends_with(kIndexExtension) && !known_indices.contains(name)) consider(name, true);
  }
  return chosen;
}

absl::Status NothingToRead(const FileNames& names, const std::string& name) {
  std::vector<std::string> safetensors, pickled, packed;
  for (const std::string& file : names) {
    if (file.ends_with(kExtension)) safetensors.push_back(base::Quote(file));
    if (file.ends_with(".gguf")) packed.push_back(base::Quote(file));
    for (const char* extension : {".bin", ".pt", ".pth", ".ckpt"}) {
      if (file.ends_with(extension)) pickled.push_back(base::Quote(file));
    }
  }
  if (!safetensors.empty()) {
    return absl::NotFoundError(absl::StrCat(name, " has no weights under a known name, but ",
                                            absl::StrJoin(safetensors, ", "),
                                            "; valid values are diffusion_pytorch_model.safetensors and "
                                            "model.safetensors, their fp16 and bf16 variants, and ",
                                            "shards together with their *.safetensors.index.json"));
  }
  if (!packed.empty()) return GgufWeightsError(name, absl::StrJoin(packed, ", "));
  if (!pickled.empty()) {
    return PickledWeightsError(name, absl::StrJoin(pickled, ", "));
  }
  return absl::NotFoundError(absl::StrCat(
      name, " has no weights; diffusion_pytorch_model.safetensors or model.safetensors, or an index, is expected"));
}

// Gives the tensors of a single file the names of parameters.
class Naming {
 public:
  Naming(const KeyMap& keys, const WeightFolder::ShapeOf& shape_of, const WeightFolder& folder)
      : keys_(keys), shape_of_(shape_of), folder_(folder) {}

  absl::Status Add(const std::string& name, WeightLocation location) {
    const std::optional<MappedKey> key = keys_.Map(name);
    location.tensor.name = name;
    if (!key) {
      if (keys_.Ignores(name)) return absl::OkStatus();
      unknown_.push_back(
          shape_of_(name) != nullptr
              ? absl::StrCat(name, " is the name of a parameter in another layout; a file has one layout")
              : absl::StrCat(name, " ", ShapeText(location.tensor.shape)));
      return absl::OkStatus();
    }
    switch (key->operation) {
      case KeyOperation::kSame:
      case KeyOperation::kConv:
        return AddSame(key->parameters[0], std::move(location), key->operation == KeyOperation::kConv);
      case KeyOperation::kSwap:
        location.order = RowOrder::kSwappedHalves;
        return AddReordered(key->parameters[0], std::move(location), 2);
      case KeyOperation::kRotaryPairs:
        location.order = RowOrder::kRotaryPairs;
        location.heads = key->heads;
        return AddReordered(key->parameters[0], std::move(location), 2 * key->heads);
      case KeyOperation::kConcat:
        return AddParts(key->parameters, location);
      case KeyOperation::kPart:
      case KeyOperation::kFrame:
        parts_[key->parameters[0]].resize(static_cast<size_t>(key->parts));
        parts_[key->parameters[0]].at(static_cast<size_t>(key->part)) = std::move(location);
        is_frame_[key->parameters[0]] = key->operation == KeyOperation::kFrame;
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // Returns the weights by parameter, or all problems in one error.
  absl::StatusOr<WeightLocations> Finish(const std::string& file) {
    for (auto& [parameter, parts] : parts_) RETURN_IF_ERROR(Assemble(parameter, parts));
    std::string text;
    for (const auto& [title, lines] : {std::pair("unknown", unknown_), {"of another shape", misshapen_}}) {
      if (lines.empty()) continue;
      const size_t shown = std::min(lines.size(), kMaxProblems);
      absl::StrAppend(&text, "\n  ", title, " (", lines.size(),
                      "): ", absl::StrJoin(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < lines.size() ? ", …" : "");
    }
    if (text.empty()) return std::move(weights_);
    return absl::InvalidArgumentError(absl::StrCat(file, ": the tensors do not fit the configuration", text));
  }

 private:
  void Misshapen(const WeightLocation& location, const std::vector<int64_t>& expected) {
    misshapen_.push_back(absl::StrCat(location.tensor.name, " ", ShapeText(location.tensor.shape), " in place of ",
                                      ShapeText(expected)));
  }

  absl::Status AddSame(const std::string& parameter, WeightLocation location, bool is_conv) {
    const std::vector<int64_t>* shape = shape_of_(parameter);
    if (shape != nullptr && location.tensor.shape != *shape) {
      std::vector<int64_t> kernel = *shape;
      if (is_conv && kernel.size() == 2) kernel.insert(kernel.end(), {1, 1});
      if (location.tensor.shape != kernel) {
        Misshapen(location, *shape);
        return absl::OkStatus();
      }
      location.tensor.shape = *shape;
    }
    return Put(parameter, std::move(location));
  }

  absl::Status AddReordered(const std::string& parameter, WeightLocation location, int64_t divisor) {
    if (location.rows() % divisor != 0 || location.is_flat) {
      misshapen_.push_back(absl::StrCat(location.tensor.name, " ", ShapeText(location.tensor.shape),
                                        " has rows that are no ", divisor, " parts"));
      return absl::OkStatus();
    }
    return AddSame(parameter, std::move(location), /*is_conv=*/false);
  }

  absl::Status AddParts(const std::vector<std::string>& parameters, const WeightLocation& location) {
    std::vector<int64_t> expected = location.tensor.shape;
    int64_t rows = 0;
    for (const std::string& parameter : parameters) {
      const std::vector<int64_t>* shape = shape_of_(parameter);
      if (shape == nullptr || shape->empty()) {  // another component's, or unknown: CheckWeights decides
        return Put(parameters[0], location);
      }
      rows += (*shape)[0];
      expected = *shape;
    }
    expected[0] = rows;
    if (location.tensor.shape != expected || rows == 0 || location.is_flat) {
      Misshapen(location, expected);
      return absl::OkStatus();
    }
    const uint64_t row_bytes = location.tensor.bytes() / static_cast<uint64_t>(rows);
    WeightLocation part = location;
    part.tensor.end = part.tensor.begin;
    for (const std::string& parameter : parameters) {
      const int64_t own = (*shape_of_(parameter))[0];
      part.tensor.shape[0] = own;
      part.tensor.begin = part.tensor.end;
      part.tensor.end = part.tensor.begin + static_cast<uint64_t>(own) * row_bytes;
      RETURN_IF_ERROR(Put(parameter, part));
      part.first_row += own;
    }
    return absl::OkStatus();
  }

  // Joins the parts of a weight that the file holds as several tensors of one type.
  absl::Status Assemble(const std::string& parameter, const std::vector<std::optional<WeightLocation>>& parts) {
    const std::vector<int64_t>* shape = shape_of_(parameter);
    WeightLocation whole =
        *std::ranges::find_if(parts, [](const auto& part) { return part.has_value(); })->operator->();
    for (const std::optional<WeightLocation>& part : parts) {
      if (!part) return absl::OkStatus();  // the parameter is reported as missing
      if (part->tensor.type != whole.tensor.type || part->tensor.shape != whole.tensor.shape || part->is_flat ||
          (part->quantization != nullptr && part->quantization->has_scales())) {
        misshapen_.push_back(absl::StrCat(part->tensor.name, ", which differs from the other parts of its weight"));
        return absl::OkStatus();
      }
    }
    const auto count = std::ssize(parts);
    if (is_frame_[parameter]) {
      RETURN_IF_ERROR(JoinFrames(parts, whole));
      whole.tensor.shape.insert(whole.tensor.shape.begin() + 2, count);
    } else {
      for (const std::optional<WeightLocation>& part : parts) {
        if (part->tensor.name != whole.tensor.name) whole.more.emplace_back(part->file, part->tensor);
      }
      whole.tensor.shape[0] *= count;
    }
    if (shape != nullptr && whole.tensor.shape != *shape) {
      Misshapen(whole, *shape);
      return absl::OkStatus();
    }
    return Put(parameter, std::move(whole));
  }

  // [out, in, height, width] of each frame → [out, in, frames, height, width].
  absl::Status JoinFrames(const std::vector<std::optional<WeightLocation>>& parts, WeightLocation& whole) {
    const std::vector<int64_t>& shape = whole.tensor.shape;
    if (shape.size() != 4 || whole.quantization != nullptr) {
      misshapen_.push_back(absl::StrCat(whole.tensor.name, " is no frame of a kernel"));
      return absl::OkStatus();
    }
    const auto pairs = static_cast<size_t>(shape[0] * shape[1]), bytes = whole.tensor.bytes();
    const size_t frame = pairs == 0 ? 0 : bytes / pairs;
    auto content = std::make_shared<std::vector<std::byte>>(bytes * parts.size());
    std::vector<std::byte> own(bytes);
    for (size_t i = 0; i < parts.size(); ++i) {
      RETURN_IF_ERROR(folder_.Read(*parts[i], 0, own));
      for (size_t pair = 0; pair < pairs; ++pair) {
        std::memcpy(content->data() + (pair * parts.size() + i) * frame, own.data() + pair * frame, frame);
      }
    }
    whole.content = std::move(content);
    return absl::OkStatus();
  }

  absl::Status Put(const std::string& parameter, WeightLocation location) {
    const std::string name = location.tensor.name;
    const auto [other, is_new] = weights_.emplace(parameter, std::move(location));
    if (is_new) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tensors ", base::Quote(name), " and ",
                                                   base::Quote(other->second.tensor.name), " are the same weight"));
  }

  const KeyMap& keys_;
  const WeightFolder::ShapeOf& shape_of_;
  const WeightFolder& folder_;
  WeightLocations weights_;
  std::map<std::string, std::vector<std::optional<WeightLocation>>> parts_;  // by parameter
  std::map<std::string, bool> is_frame_;
  std::vector<std::string> unknown_, misshapen_;
};

absl::Status Join(const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  const size_t shown = std::min(problems.size(), kMaxProblems);
  std::string text = absl::StrJoin(problems.begin(), problems.begin() + shown, "\n");
  if (problems.size() > shown) absl::StrAppend(&text, "\nand ", problems.size() - shown, " more like these");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(std::string_view text, const std::string& name) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text, name, kMaxShardIndexBytes));
  const base::Json* weight_map = json.Find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": field \"weight_map\" is ",
                                                   weight_map ? weight_map->Describe() : "missing",
                                                   "; it must be an object from tensor names to file names"));
  }
  if (weight_map->members().empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": \"weight_map\" is empty"));
  std::map<std::string, std::string> result;
  std::vector<std::string> problems;
  for (const base::JsonMember& member : weight_map->members()) {
    const std::string* file = member.value.AsString();
    if (file == nullptr || !base::IsPlainFileName(*file) || !file->ends_with(kExtension)) {
      problems.push_back(absl::StrCat(name, ": tensor ", base::Quote(member.key), " is mapped to ",
                                      member.value.Describe(),
                                      "; it must be the name of a .safetensors file in the same folder"));
    } else {
      result.emplace(member.key, *file);
    }
  }
  RETURN_IF_ERROR(Join(problems));
  return result;
}

bool WeightFolder::HasWeights(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return true;
  const absl::StatusOr<FileNames> names = ListFolder(path, path);
  return names.ok() && ChooseFile(*names).has_value();
}

absl::StatusOr<WeightFolder> WeightFolder::Open(const std::string& folder, const std::string& name) {
  ASSIGN_OR_RETURN(const FileNames names, ListFolder(folder, name));
  const std::optional<WeightsFile> chosen = ChooseFile(names);
  if (!chosen) return NothingToRead(names, name);

  std::map<std::string, std::string> index;
  std::set<std::string> shards = {chosen->name};
  const std::string index_name = absl::StrCat(name, "/", chosen->name);
  if (chosen->is_index) {
    const absl::StatusOr<std::string> text =
        base::ReadWholeFile(absl::StrCat(folder, "/", chosen->name), index_name, kMaxShardIndexBytes);
    if (!text.ok()) return text.status();
    absl::StatusOr<std::map<std::string, std::string>> parsed = ParseWeightIndex(*text, index_name);
    if (!parsed.ok()) return parsed.status();
    index = *std::move(parsed);
    shards.clear();
    for (const auto& [tensor, shard] : index) shards.insert(shard);
  }

  WeightFolder result;
  std::vector<std::string> problems;
  for (const std::string& shard : shards) {
    const std::string path = absl::StrCat(folder, "/", shard);
    const base::FileIdentity identity = base::IdentityOf(path);
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path, absl::StrCat(name, "/", shard));
    if (!file.ok()) {
      if (shards.size() == 1) return file.status();
      problems.emplace_back(file.status().message());
      continue;
    }
    for (const StoredTensor& tensor : file->tensors()) {
      const auto [other, added] =
          result.tensors_.emplace(tensor.name, Location{.file = result.files_.size(), .tensor = tensor});
      if (!added) {
        problems.push_back(absl::StrCat(name, ": tensor ", base::Quote(tensor.name), " is both in ",
                                        result.file_names_[other->second.file], " and in ", shard));
      } else if (chosen->is_index && !index.contains(tensor.name)) {
        problems.push_back(
            absl::StrCat(index_name, ": tensor ", base::Quote(tensor.name), " of ", shard, " is not mapped"));
      }
      result.total_bytes_ += tensor.bytes();
    }
    result.file_names_.push_back(shard);
    result.files_.emplace_back(*std::move(file));
    result.opened_.emplace_back(path, identity);
  }
  for (const auto& [tensor, shard] : index) {
    const auto opened = std::find(result.file_names_.begin(), result.file_names_.end(), shard);
    if (opened == result.file_names_.end()) continue;  // reported already
    const TensorFile& file = Common(result.files_[opened - result.file_names_.begin()]);
    if (file.Find(tensor) == nullptr) {
      problems.push_back(absl::StrCat(index_name, ": tensor ", base::Quote(tensor), " is not in ", shard));
    }
  }
  RETURN_IF_ERROR(Join(problems));
  RETURN_IF_ERROR(result.Resolve("", name));
  return result;
}

absl::StatusOr<WeightFolder> WeightFolder::OpenFile(const std::string& path, const std::string& prefix, KeyMap keys,
                                                    const std::string& more) {
  WeightFolder result;
  result.name_ = std::filesystem::path(path).filename().string();
  RETURN_IF_ERROR(result.AddFile(path, prefix));
  if (!more.empty()) RETURN_IF_ERROR(result.AddFile(more, ""));
  RETURN_IF_ERROR(result.Resolve(prefix, result.name_));
  result.keys_ = std::move(keys);
  return result;
}

absl::Status WeightFolder::AddFile(const std::string& path, const std::string& prefix) {
  file_names_.push_back(std::filesystem::path(path).filename().string());
  opened_.emplace_back(path, base::IdentityOf(path));
  ASSIGN_OR_RETURN(AnyTensorFile file, OpenTensorFile(path, file_names_.back()));
  for (const StoredTensor& tensor : Common(file).tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    const auto [other, is_new] =
        tensors_.emplace(tensor.name.substr(prefix.size()), Location{.file = files_.size(), .tensor = tensor});
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(tensor.name), " is both in ",
                                                     file_names_[other->second.file], " and in ", file_names_.back()));
    }
    total_bytes_ += tensor.bytes();
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status WeightFolder::Resolve(const std::string& prefix, const std::string& name) {
  std::vector<std::map<std::string, std::string>> metadata;
  for (const AnyTensorFile& file : files_) {
    const auto* safetensors = std::get_if<SafetensorsFile>(&file);
    metadata.push_back(safetensors == nullptr ? std::map<std::string, std::string>() : safetensors->metadata());
  }
  return ResolveQuantization(tensors_, metadata, prefix, Reader(), name);
}

absl::Status WeightFolder::Name(const ShapeOf& shape_of) {
  if (!is_foreign()) return absl::OkStatus();
  Naming naming(*keys_, shape_of, *this);
  for (const auto& [name, location] : tensors_) RETURN_IF_ERROR(naming.Add(name, location));
  ASSIGN_OR_RETURN(tensors_, naming.Finish(name_));
  is_named_ = true;
  return absl::OkStatus();
}

std::optional<std::string> WeightFolder::NameInFile(std::string_view parameter) const {
  return keys_ ? keys_->NameOf(parameter) : std::nullopt;
}

ReadStored WeightFolder::Reader() const {
  return [this](size_t file, const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) {
    return Common(files_[file]).Read(tensor, offset, out);
  };
}

absl::Status WeightFolder::ReadParts(const Location& location, uint64_t offset, std::span<std::byte> out) const {
  if (location.content != nullptr) {
    std::memcpy(out.data(), location.content->data() + offset, out.size());
    return absl::OkStatus();
  }
  if (location.more.empty()) return Common(files_[location.file]).Read(location.tensor, offset, out);
  uint64_t begin = 0;
  const auto read = [&](size_t file, const StoredTensor& part) -> absl::Status {
    const uint64_t end = begin + part.bytes(), from = std::max(offset, begin), to = std::min(offset + out.size(), end);
    const uint64_t first = begin;
    begin = end;
    if (from >= to) return absl::OkStatus();
    return Common(files_[file]).Read(part, from - first, out.subspan(from - offset, to - from));
  };
  RETURN_IF_ERROR(read(location.file, location.tensor));
  for (const auto& [file, part] : location.more) RETURN_IF_ERROR(read(file, part));
  return absl::OkStatus();
}

absl::Status WeightFolder::Read(const Location& location, uint64_t offset, std::span<std::byte> out) const {
  if (offset > location.bytes() || out.size() > location.bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", base::Quote(location.tensor.name), " has ", location.bytes(),
                                              " bytes; ", out.size(), " from byte ", offset, " on were requested"));
  }
  if (location.order == RowOrder::kOwn) return ReadParts(location, offset, out);
  // As many rows at once as follow one another in the file.
  const uint64_t row_bytes = location.bytes() / static_cast<uint64_t>(location.rows());
  while (!out.empty()) {
    const auto row = static_cast<int64_t>(offset / row_bytes);
    const uint64_t within = offset % row_bytes;
    int64_t count = 1;
    while (static_cast<uint64_t>(count) * row_bytes - within < out.size() &&
           location.StoredRow(row + count) == location.StoredRow(row) + count) {
      ++count;
    }
    const uint64_t bytes = std::min<uint64_t>(static_cast<uint64_t>(count) * row_bytes - within, out.size());
    const uint64_t from = static_cast<uint64_t>(location.StoredRow(row)) * row_bytes + within;
    RETURN_IF_ERROR(ReadParts(location, from, out.first(bytes)));
    offset += bytes;
    out = out.subspan(bytes);
  }
  return absl::OkStatus();
}

absl::Status WeightFolder::ReadScales(const Location& location, int64_t row, int64_t rows, int64_t columns,
                                      std::span<float> out) const {
  return models::ReadScales(location, row, rows, columns, Reader(), out);
}

absl::Status WeightFolder::Read(std::string_view tensor, std::span<std::byte> out) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat("there is no tensor ", base::Quote(tensor)));
  if (out.size() != found->second.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(tensor), " has ", found->second.bytes(),
                                                   " bytes; ", out.size(), " were requested"));
  }
  return Read(found->second, 0, out);
}

absl::Status WeightFolder::CheckUnchanged() const {
  for (size_t i = 0; i < opened_.size(); ++i) {
    const auto& [path, before] = opened_[i];
    const base::FileIdentity now = base::IdentityOf(path);
    if (now.device != before.device || now.inode != before.inode || now == before) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(file_names_[i], " was written to after it was opened; to replace a file of a model that is in ",
                     "use, write the new one under another name and rename it"));
  }
  return absl::OkStatus();
}

void WeightFolder::AddToDigest(base::Sha256& digest) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    digest.UpdatePart(file_names_[i]);
    digest.UpdatePart(Common(files_[i]).header_digest());
  }
}

}  // namespace tessera::models
