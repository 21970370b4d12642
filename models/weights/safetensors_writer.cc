#include "models/weights/safetensors_writer.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr size_t kHeaderAlignment = 8;  // as in the format's reference library

absl::Status Check(const std::vector<TensorEntry>& tensors, const std::string& path) {
  std::set<std::string_view> names;
  for (const TensorEntry& tensor : tensors) {
    const std::string where = absl::StrCat("cannot write \"", path, "\": tensor ", base::Quote(tensor.name));
    if (tensor.name == "__metadata__") return absl::InvalidArgumentError(absl::StrCat(where, " has a reserved name"));
    if (!names.insert(tensor.name).second) return absl::InvalidArgumentError(absl::StrCat(where, " is given twice"));
    for (const int64_t size : tensor.shape) {
      if (size < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": a size must be at least 0; the shape is [", absl::StrJoin(tensor.shape, ", "), "]"));
      }
    }
  }
  return absl::OkStatus();
}

// Returns nothing if the bytes do not fit into 63 bits.
std::optional<uint64_t> Bytes(const TensorEntry& tensor) {
  int64_t bytes = StoredTypeSize(tensor.type);
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

absl::StatusOr<std::string> Header(const std::vector<TensorEntry>& tensors,
                                   const std::map<std::string, std::string>& metadata, const std::string& path) {
  base::JsonWriter json;
  json.BeginObject();
  if (!metadata.empty()) {
    json.Key("__metadata__").BeginObject();
    for (const auto& [key, value] : metadata) json.Key(key).String(value);
    json.EndObject();
  }
  int64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::optional<uint64_t> bytes = Bytes(tensor);
    int64_t end = 0;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &end)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot write \"", path, "\": with tensor ",
                                                     base::Quote(tensor.name), " it has more than 2^63 - 1 bytes"));
    }
    json.Key(tensor.name)
        .BeginObject()
        .Key("dtype")
        .String(StoredTypeName(tensor.type))
        .Key("shape")
        .Ints(tensor.shape);
    json.Key("data_offsets").Ints({offset, end}).EndObject();
    offset = end;
  }
  json.EndObject();
  std::string text = json.text();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write \"", path, "\": the header of ", tensors.size(),
                                                   " tensors has ", text.size(), " bytes; at most ",
                                                   kMaxSafetensorsHeaderBytes, " are valid"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> SafetensorsHeaderBytes(const std::vector<TensorEntry>& tensors,
                                                   const std::map<std::string, std::string>& metadata,
                                                   const std::string& name) {
  RETURN_IF_ERROR(Check(tensors, name));
  ASSIGN_OR_RETURN(const std::string header, Header(tensors, metadata, name));
  std::string bytes(sizeof(uint64_t), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header;
}

SafetensorsWriter::SafetensorsWriter(base::AtomicFile file, std::vector<TensorEntry> tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  if (!tensors_.empty()) due_ = *Bytes(tensors_[0]);
  SkipComplete();
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorEntry> tensors,
                                                            const std::map<std::string, std::string>& metadata) {
  ASSIGN_OR_RETURN(const std::string header, SafetensorsHeaderBytes(tensors, metadata, path));
  ASSIGN_OR_RETURN(base::AtomicFile file, base::AtomicFile::Create(path));
  SafetensorsWriter writer(std::move(file), std::move(tensors));
  RETURN_IF_ERROR(writer.Put(header));
  return writer;
}

absl::Status SafetensorsWriter::Put(std::string_view bytes) {
  RETURN_IF_ERROR(file_.Append(bytes));
  digest_.Update(bytes);
  file_bytes_ += bytes.size();
  return absl::OkStatus();
}

void SafetensorsWriter::SkipComplete() {
  while (next_ < tensors_.size() && due_ == 0) {
    ++next_;
    if (next_ < tensors_.size()) due_ = *Bytes(tensors_[next_]);
  }
}

absl::Status SafetensorsWriter::Append(std::string_view tensor, std::span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const std::string due = next_ < tensors_.size() ? tensors_[next_].name : "";
  if (next_ == tensors_.size() || tensor != due) {
    return absl::FailedPreconditionError(absl::StrCat("tensor ", base::Quote(tensor),
                                                      " is written out of order; the next is ",
                                                      due.empty() ? "none" : base::Quote(due)));
  }
  if (bytes.size() > due_) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", base::Quote(tensor), " needs ", due_, " more bytes and is given ", bytes.size()));
  }
  RETURN_IF_ERROR(Put({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  due_ -= bytes.size();
  SkipComplete();
  return absl::OkStatus();
}

absl::StatusOr<WrittenFile> SafetensorsWriter::Finish() {
  if (next_ < tensors_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", base::Quote(tensors_[next_].name), " lacks ", due_, " bytes"));
  }
  RETURN_IF_ERROR(file_.Commit());
  return WrittenFile{.bytes = file_bytes_, .sha256 = digest_.Finish()};
}

}  // namespace tessera::models
