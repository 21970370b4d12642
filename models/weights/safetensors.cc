#include "models/weights/safetensors.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/git_lfs.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/weights/stored_types.h"

namespace tessera::models {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

absl::Status ParseTensor(const base::Json& json, uint64_t data_begin, uint64_t data_bytes, const std::string& where,
                         StoredTensor* tensor) {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", parts...));
  };
  if (!json.is_object()) {
    return error("is ", json.Describe(), "; it must be an object with dtype, shape and data_offsets");
  }
  for (const base::JsonMember& member : json.members()) {
    if (member.key != "dtype" && member.key != "shape" && member.key != "data_offsets") {
      return error("unknown field ", base::Quote(member.key), "; valid values are dtype, shape and data_offsets");
    }
  }
  for (std::string_view field : {"dtype", "shape", "data_offsets"}) {
    if (json.Find(field) == nullptr) return error(std::string(field), " is missing");
  }

  const base::Json& dtype = *json.Find("dtype");
  const std::optional<StoredType> type = dtype.AsString() != nullptr ? StoredTypeOf(*dtype.AsString()) : std::nullopt;
  if (!type) {
    return error("unknown dtype ", dtype.Describe(), "; known are ",
                 absl::StrJoin(kStoredTypes, ", ",
                               [](std::string* out, StoredType known) { out->append(StoredTypeName(known)); }));
  }
  tensor->type = *type;

  const base::Json& shape = *json.Find("shape");
  if (!shape.is_array()) return error("shape is ", shape.Describe(), "; it must be a list of sizes");
  for (const base::Json& item : shape.items()) {
    const std::optional<int64_t> size = item.AsInt();
    if (!size || *size < 0) {
      return error("size ", item.Describe(), " in the shape; a size must be a whole number from 0 to 2^63 - 1");
    }
    tensor->shape.push_back(*size);
  }
  const std::optional<int64_t> bytes = StoredBytes(*type, tensor->shape);
  if (!bytes) return error("shape [", absl::StrJoin(tensor->shape, ", "), "] has more bytes than 63 bits can count");

  const base::Json& offsets = *json.Find("data_offsets");
  const std::span<const base::Json> pair = offsets.items();
  const auto offset = [&](size_t i) { return i < pair.size() ? pair[i].AsInt().value_or(-1) : -1; };
  if (pair.size() != 2 || offset(0) < 0 || offset(1) < 0) {
    return error("data_offsets must be a list of two whole numbers of at least 0");
  }
  const uint64_t begin = static_cast<uint64_t>(offset(0)), end = static_cast<uint64_t>(offset(1));
  if (begin > end) return error("data_offsets [", begin, ", ", end, "] end before they begin");
  if (end > data_bytes) {
    return error("data_offsets [", begin, ", ", end, "] go past the end of the file, which holds ", data_bytes,
                 " bytes of tensors; it may have been cut short");
  }
  if (end - begin != static_cast<uint64_t>(*bytes)) {
    return error("data_offsets [", begin, ", ", end, "] span ", end - begin, " bytes; ", StoredTypeName(*type),
                 " of shape [", absl::StrJoin(tensor->shape, ", "), "] has ", *bytes);
  }
  tensor->begin = data_begin + begin;
  tensor->end = data_begin + end;
  return absl::OkStatus();
}

absl::Status ParseMetadata(const base::Json& json, const std::string& file_name,
                           std::map<std::string, std::string>* metadata) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": __metadata__ is ", json.Describe(), "; it must be an object of texts"));
  }
  for (const base::JsonMember& member : json.members()) {
    if (member.value.AsString() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ": __metadata__ field ", base::Quote(member.key),
                                                     " is ", member.value.Describe(), "; it must be a text"));
    }
    (*metadata)[member.key] = *member.value.AsString();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> ParseSafetensorsHeaderLength(std::string_view prefix, uint64_t file_size,
                                                      const std::string& file_name) {
  if (file_size < kLengthBytes || prefix.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": has ", file_size, " bytes; a safetensors file begins with 8 bytes of length"));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(prefix[i])} << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": header of ", length, " bytes; at most ",
                                                   kMaxSafetensorsHeaderBytes,
                                                   " are valid: this is not a safetensors file"));
  }
  if (length > file_size - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": header of ", length, " bytes in a file of ", file_size,
                                                   "; the file may have been cut short"));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t file_size,
                                                         const std::string& file_name) {
  const uint64_t data_begin = kLengthBytes + header.size();
  if (file_size < data_begin) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": the file ends within its header"));
  }
  const uint64_t data_bytes = file_size - data_begin;
  if (header.empty() || header[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": the header does not begin with {"));
  }
  ASSIGN_OR_RETURN(base::Json json,
                   base::ParseJson(header, absl::StrCat(file_name, ": header"), kMaxSafetensorsHeaderBytes));

  SafetensorsHeader result;
  for (const base::JsonMember& member : json.members()) {
    if (member.key == kMetadataKey) {
      RETURN_IF_ERROR(ParseMetadata(member.value, file_name, &result.metadata));
      continue;
    }
    StoredTensor& tensor = result.tensors.emplace_back();
    tensor.name = member.key;
    RETURN_IF_ERROR(ParseTensor(member.value, data_begin, data_bytes,
                                absl::StrCat(file_name, ": tensor ", base::Quote(member.key)), &tensor));
  }

  std::sort(result.tensors.begin(), result.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = data_begin;
  const StoredTensor* previous = nullptr;
  for (const StoredTensor& tensor : result.tensors) {
    if (tensor.begin < covered) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ": tensors ", base::Quote(previous->name), " and ",
                                                     base::Quote(tensor.name), " overlap by ",
                                                     std::min(covered, tensor.end) - tensor.begin, " bytes"));
    }
    if (tensor.end >= covered) previous = &tensor;
    covered = std::max(covered, tensor.end);
  }
  covered = data_begin;
  previous = nullptr;
  for (const StoredTensor& tensor : result.tensors) {
    if (tensor.begin > covered) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ": ", tensor.begin - covered, " bytes before tensor ",
                                                     base::Quote(tensor.name), " belong to no tensor"));
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != file_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ": ", file_size - covered, " bytes after ",
        previous ? absl::StrCat("the last tensor, ", base::Quote(previous->name)) : std::string("the header"),
        ", belong to no tensor"));
  }
  return result;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, name));
  std::string prefix(std::min<uint64_t>(kLengthBytes, file.size()), '\0');
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(prefix))));
  const absl::StatusOr<uint64_t> length = ParseSafetensorsHeaderLength(prefix, file.size(), name);
  if (!length.ok() && file.size() <= base::kMaxGitLfsPointerBytes) {
    std::string whole(file.size(), '\0');
    const absl::Status read = file.Read(0, std::as_writable_bytes(std::span(whole)));
    if (read.ok() && base::IsGitLfsPointer(whole)) return base::GitLfsPointerError(name);
  }
  if (!length.ok()) return length.status();
  std::string text(*length, '\0');
  RETURN_IF_ERROR(file.Read(kLengthBytes, std::as_writable_bytes(std::span(text))));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(text, file.size(), name));
  base::Sha256 digest;
  digest.Update(text);
  return SafetensorsFile(std::move(file), std::move(header), digest.Finish());
}

}  // namespace tessera::models
