#include "runtime/training/checkpoints/checkpoint_index.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "models/weights/stored_types.h"

namespace tessera::runtime {
namespace {

constexpr std::string_view kFormat = "tessera-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxRanks = 1 << 16;

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Returns the errors of the fields that were read, and of unknown fields.
absl::Status CheckRead(base::ConfigReader& reader, const std::string& where) {
  RETURN_IF_ERROR(reader.status());
  const std::vector<std::string> unknown = reader.UnknownFields();
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, ": unknown field ", base::Quote(unknown[0])));
}

absl::StatusOr<StoredBox> ParseBox(const base::Json& json, const CheckpointTensor& tensor, int64_t ranks,
                                   const std::string& where) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromJson(json, where));
  StoredBox box;
  box.rank = reader.RequiredInt("rank", 0, ranks - 1);
  box.box.offset = reader.RequiredInts("offset", 0);
  box.box.extent = reader.RequiredInts("extent", 1);
  RETURN_IF_ERROR(CheckRead(reader, where));
  if (!LiesWithin(box.box, tensor.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": a box with the offset ", ShapeText(box.box.offset),
                                                   " and the extent ", ShapeText(box.box.extent),
                                                   " is outside the shape ", ShapeText(tensor.shape)));
  }
  return box;
}

absl::StatusOr<CheckpointTensor> ParseTensor(const base::Json& json, int64_t ranks, const std::string& where) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromJson(json, where));
  CheckpointTensor tensor;
  const std::string type = reader.RequiredString("dtype");
  tensor.shape = reader.RequiredInts("shape", 0);
  reader.Ignore({"boxes"});
  RETURN_IF_ERROR(CheckRead(reader, where));
  const std::optional<models::StoredType> known = models::StoredTypeOf(type);
  if (!known) return absl::InvalidArgumentError(absl::StrCat(where, ": unknown dtype ", base::Quote(type)));
  tensor.type = *known;
  int64_t bytes = models::StoredTypeSize(tensor.type);
  for (const int64_t size : tensor.shape) {
    if (!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": the shape ", ShapeText(tensor.shape), " has more bytes than 63 bits count"));
  }
  const base::Json* boxes = json.Find("boxes");
  if (boxes == nullptr || !boxes->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": \"boxes\" must be a list"));
  }
  for (const base::Json& box : boxes->items()) {
    ASSIGN_OR_RETURN(StoredBox parsed, ParseBox(box, tensor, ranks, where));
    tensor.boxes.push_back(std::move(parsed));
  }
  return tensor;
}

void WriteJson(const base::Json& json, base::JsonWriter& writer) {
  using Type = base::Json::Type;
  switch (json.type()) {
    case Type::kNull:
      writer.Json("null");
      return;
    case Type::kBool:
      writer.Bool(*json.AsBool());
      return;
    case Type::kInt:
      writer.Int(*json.AsInt());
      return;
    case Type::kNumber:
      writer.Number(*json.AsNumber());
      return;
    case Type::kString:
      writer.String(*json.AsString());
      return;
    case Type::kArray:
      writer.BeginArray();
      for (const base::Json& item : json.items()) WriteJson(item, writer);
      writer.EndArray();
      return;
    case Type::kObject:
      writer.BeginObject();
      for (const base::JsonMember& member : json.members()) {
        writer.Key(member.key);
        WriteJson(member.value, writer);
      }
      writer.EndObject();
      return;
  }
}

std::string StateText(const base::Json& json) {
  base::JsonWriter writer;
  WriteJson(json, writer);
  return writer.text();
}

// Adds what one rank holds to the tensors of all ranks, without selecting a writer.
absl::Status AddHeld(const CheckpointIndex& held, int64_t rank, std::map<std::string, CheckpointTensor>& tensors,
                     std::map<std::string, int64_t>& first_rank) {
  for (const auto& [name, tensor] : held.tensors) {
    const auto [it, is_new] = tensors.try_emplace(name, CheckpointTensor{.type = tensor.type, .shape = tensor.shape});
    if (is_new) first_rank[name] = rank;
    if (it->second.type != tensor.type || it->second.shape != tensor.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", base::Quote(name), " is ", models::StoredTypeName(it->second.type), " ",
                       ShapeText(it->second.shape), " on rank ", first_rank[name], " and ",
                       models::StoredTypeName(tensor.type), " ", ShapeText(tensor.shape), " on rank ", rank));
    }
    for (const StoredBox& box : tensor.boxes) it->second.boxes.push_back({.box = box.box, .rank = rank});
  }
  return absl::OkStatus();
}

// Of equal boxes, keeps the one of the rank with the fewest bytes to write so far.
void ChooseWriters(CheckpointTensor& tensor, std::vector<uint64_t>& bytes_of_rank) {
  std::sort(tensor.boxes.begin(), tensor.boxes.end());
  std::vector<StoredBox> chosen;
  for (auto begin = tensor.boxes.begin(); begin != tensor.boxes.end();) {
    const auto end = std::find_if(begin, tensor.boxes.end(), [&](const StoredBox& b) { return b.box != begin->box; });
    const auto writer = std::min_element(begin, end, [&](const StoredBox& a, const StoredBox& b) {
      return bytes_of_rank[static_cast<size_t>(a.rank)] < bytes_of_rank[static_cast<size_t>(b.rank)];
    });
    bytes_of_rank[static_cast<size_t>(writer->rank)] +=
        static_cast<uint64_t>(writer->box.Elements() * models::StoredTypeSize(tensor.type));
    chosen.push_back(*writer);
    begin = end;
  }
  tensor.boxes = std::move(chosen);
}

}  // namespace

std::string IndexJson(const CheckpointIndex& index) {
  base::JsonWriter json;
  json.BeginObject().Key("format").String(kFormat).Key("version").Int(kVersion);
  json.Key("step").Int(index.step).Key("ranks").Int(index.ranks).Key("state").Json(index.state);
  json.Key("tensors").BeginObject();
  for (const auto& [name, tensor] : index.tensors) {
    json.Key(name).BeginObject().Key("dtype").String(models::StoredTypeName(tensor.type));
    json.Key("shape").Ints(tensor.shape).Key("boxes").BeginArray();
    for (const StoredBox& box : tensor.boxes) {
      json.BeginObject().Key("rank").Int(box.rank);
      json.Key("offset").Ints(box.box.offset).Key("extent").Ints(box.box.extent).EndObject();
    }
    json.EndArray().EndObject();
  }
  json.EndObject().EndObject();
  return json.text();
}

absl::StatusOr<CheckpointIndex> ParseIndex(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromText(json, name));
  CheckpointIndex index;
  const std::string format = reader.RequiredString("format");
  const int64_t version = reader.RequiredInt("version");
  index.step = reader.RequiredInt("step", 0);
  index.ranks = reader.RequiredInt("ranks", 1, kMaxRanks);
  RETURN_IF_ERROR(reader.status());
  if (format != kFormat || version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is ", base::Quote(format), " version ", version,
                                                   "; this program reads ", base::Quote(kFormat), " version ",
                                                   kVersion));
  }
  reader.Ignore({"state", "tensors"});
  RETURN_IF_ERROR(CheckRead(reader, name));
  const base::Json* state = reader.json().Find("state");
  const base::Json* tensors = reader.json().Find("tensors");
  if (state == nullptr || !state->is_object() || tensors == nullptr || !tensors->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": \"state\" and \"tensors\" must be objects"));
  }
  index.state = StateText(*state);
  for (const base::JsonMember& member : tensors->members()) {
    const std::string where = absl::StrCat(name, ": tensor ", base::Quote(member.key));
    ASSIGN_OR_RETURN(index.tensors[member.key], ParseTensor(member.value, index.ranks, where));
  }
  return index;
}

absl::Status CheckCoverage(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors) {
    int64_t covered = 0;
    for (size_t i = 0; i < tensor.boxes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!Intersect(tensor.boxes[i].box, tensor.boxes[j].box)) continue;
        return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(name), ": the boxes ",
                                                       BoxText(tensor.boxes[j].box), " of rank ", tensor.boxes[j].rank,
                                                       " and ", BoxText(tensor.boxes[i].box), " of rank ",
                                                       tensor.boxes[i].rank, " overlap without being equal"));
      }
      covered += tensor.boxes[i].box.Elements();  // at most the tensor's elements, because boxes do not overlap
    }
    const int64_t elements = WholeBox(tensor.shape).Elements();
    if (covered != elements) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(name), " of shape ",
                                                     ShapeText(tensor.shape), ": the ranks hold ", covered, " of its ",
                                                     elements, " elements"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointIndex> MergeIndexes(const std::vector<CheckpointIndex>& held) {
  CheckpointIndex merged{.step = held.at(0).step, .ranks = static_cast<int64_t>(held.size()), .state = held[0].state};
  std::map<std::string, int64_t> first_rank;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    if (held[rank].step != merged.step || held[rank].state != merged.state) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank 0 is at step ", merged.step, " with the state ", base::Quote(merged.state), ", rank ",
                       rank, " at step ", held[rank].step, " with the state ", base::Quote(held[rank].state)));
    }
    RETURN_IF_ERROR(AddHeld(held[rank], static_cast<int64_t>(rank), merged.tensors, first_rank));
  }
  std::vector<uint64_t> bytes_of_rank(held.size(), 0);
  for (auto& [name, tensor] : merged.tensors) ChooseWriters(tensor, bytes_of_rank);
  RETURN_IF_ERROR(CheckCoverage(merged));
  return merged;
}

std::string StoredName(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box) {
  return box == WholeBox(shape) ? tensor : absl::StrCat(tensor, BoxText(box));
}

}  // namespace tessera::runtime
