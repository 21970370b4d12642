#include "models/weights/gguf.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/git_lfs.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/weights/stored_types.h"

namespace tessera::models {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr int64_t kMostDimensions = 4;  // GGML_MAX_DIMS
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 4 + 8;  // of an entry of the table without name and dimensions
constexpr uint64_t kLeastMetadataBytes = 8 + 4 + 1;
constexpr std::string_view kAlignmentKey = "general.alignment", kSplitKey = "split.count";

// Types by their number in the file (enum ggml_type); no StoredType where this program does not read them.
struct TensorType {
  uint32_t number;
  std::string_view name;
  std::optional<StoredType> type = std::nullopt;
  bool is_removed = false;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", StoredType::kF32},
    {1, "F16", StoredType::kF16},
    {2, "Q4_0", StoredType::kQ4_0},
    {3, "Q4_1", StoredType::kQ4_1},
    {4, "Q4_2", std::nullopt, true},
    {5, "Q4_3", std::nullopt, true},
    {6, "Q5_0", StoredType::kQ5_0},
    {7, "Q5_1", StoredType::kQ5_1},
    {8, "Q8_0", StoredType::kQ8_0},
    {9, "Q8_1"},
    {10, "Q2_K", StoredType::kQ2_K},
    {11, "Q3_K", StoredType::kQ3_K},
    {12, "Q4_K", StoredType::kQ4_K},
    {13, "Q5_K", StoredType::kQ5_K},
    {14, "Q6_K", StoredType::kQ6_K},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL", StoredType::kIQ4_NL},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS", StoredType::kIQ4_XS},
    {24, "I8", StoredType::kI8},
    {25, "I16", StoredType::kI16},
    {26, "I32", StoredType::kI32},
    {27, "I64", StoredType::kI64},
    {28, "F64", StoredType::kF64},
    {29, "IQ1_M"},
    {30, "BF16", StoredType::kBF16},
    {31, "Q4_0_4_4", std::nullopt, true},
    {32, "Q4_0_4_8", std::nullopt, true},
    {33, "Q4_0_8_8", std::nullopt, true},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {36, "IQ4_NL_4_4", std::nullopt, true},
    {37, "IQ4_NL_4_8", std::nullopt, true},
    {38, "IQ4_NL_8_8", std::nullopt, true},
    {39, "MXFP4"},
    {40, "NVFP4"},
};

std::string ReadTypeNames() {
  std::vector<std::string> names;
  for (const TensorType& type : kTensorTypes) {
    if (type.type) names.emplace_back(type.name);
  }
  return absl::StrJoin(names, ", ");
}

// Types of metadata, by their number in the file.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kList,
  kU64,
  kI64,
  kF64,
};

// The bytes of a value of fixed size; 0 for others.
uint64_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
    default:
      return 0;
  }
}

bool IsFloat(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

double FloatOf(ValueType type, std::string_view bytes) {
  const uint64_t bits = LittleEndian(bytes);
  return type == ValueType::kF32 ? std::bit_cast<float>(static_cast<uint32_t>(bits)) : std::bit_cast<double>(bits);
}

// A whole number of fixed size, sign-extended. Numbers of 2^63 and above become negative; see HasTopBit.
int64_t IntegerOf(ValueType type, std::string_view bytes) {
  const uint64_t bits = LittleEndian(bytes);
  switch (type) {
    case ValueType::kI8:
      return static_cast<int8_t>(bits);
    case ValueType::kI16:
      return static_cast<int16_t>(bits);
    case ValueType::kI32:
      return static_cast<int32_t>(bits);
    case ValueType::kBool:
      return bits != 0;
    default:
      return static_cast<int64_t>(bits);
  }
}

bool HasTopBit(ValueType type, std::string_view bytes) {
  return type == ValueType::kU64 && LittleEndian(bytes) > uint64_t{std::numeric_limits<int64_t>::max()};
}

// Reads the header front to back. The first error stays; after it, everything reads as empty.
class HeaderReader {
 public:
  HeaderReader(std::string_view bytes, uint64_t file_size, const std::string& name)
      : bytes_(bytes), file_size_(file_size), name_(name) {}

  const absl::Status& status() const { return status_; }
  uint64_t position() const { return at_; }
  // The most that the rest of the file can hold.
  uint64_t rest() const { return file_size_ - at_; }

  template <typename... Parts>
  absl::Status Fail(const Parts&... parts) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(name_, ": ", parts...));
    return status_;
  }

  // The next bytes; `what` appears in the error if the file does not hold them.
  std::string_view Take(uint64_t count, std::string_view what) {
    if (!status_.ok()) return {};
    if (count > rest()) {
      status_ =
          Fail(std::string(what), " of ", count, " bytes at byte ", at_, " goes past the end of the file, which has ",
               file_size_, " bytes; the file may have been cut short");
      return {};
    }
    if (count > bytes_.size() - at_) {
      status_ = absl::OutOfRangeError(absl::StrCat(name_, ": the header is longer than ", bytes_.size(), " bytes"));
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  uint64_t Number(uint64_t size, std::string_view what) { return LittleEndian(Take(size, what)); }
  std::string_view Text(std::string_view what) { return Take(Number(8, what), what); }

  // Reads a value of the metadata of that type.
  absl::StatusOr<GgufValue> Value(ValueType type, const std::string& key) {
    if (type == ValueType::kString) return FromText(Text("a text"));
    if (type == ValueType::kList) return List(key);
    const uint64_t size = SizeOf(type);
    if (size == 0) return Fail("metadata ", base::Quote(key), " has the unknown type ", static_cast<uint32_t>(type));
    const std::string_view bytes = Take(size, "a value");
    RETURN_IF_ERROR(status_);
    if (IsFloat(type)) return FloatOf(type, bytes);
    if (HasTopBit(type, bytes)) return static_cast<double>(LittleEndian(bytes));
    if (type == ValueType::kBool) return IntegerOf(type, bytes) != 0;
    return IntegerOf(type, bytes);
  }

 private:
  absl::StatusOr<GgufValue> FromText(std::string_view text) {
    RETURN_IF_ERROR(status_);
    return std::string(text);
  }

  absl::StatusOr<GgufValue> List(const std::string& key) {
    const auto type = static_cast<ValueType>(Number(4, "the type of a list"));
    const uint64_t count = Number(8, "the length of a list");
    RETURN_IF_ERROR(status_);
    if (type == ValueType::kList) return Fail("metadata ", base::Quote(key), " is a list of lists, which are not read");
    const uint64_t size = type == ValueType::kString ? 8 : SizeOf(type);
    if (size == 0) {
      return Fail("metadata ", base::Quote(key), " is a list of the unknown type ", static_cast<uint32_t>(type));
    }
    if (count > kMaxGgufListItems || count > rest() / size) {
      return Fail("metadata ", base::Quote(key), " is a list of ", count, " items; the file has room for ",
                  std::min(kMaxGgufListItems, rest() / size));
    }
    if (type == ValueType::kString) {
      std::vector<std::string> texts;
      for (uint64_t i = 0; i < count && status_.ok(); ++i) texts.emplace_back(Text("a text"));
      RETURN_IF_ERROR(status_);
      return texts;
    }
    const std::string_view bytes = Take(count * size, "a list");
    RETURN_IF_ERROR(status_);
    std::vector<double> floats;
    std::vector<int64_t> integers;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string_view item = bytes.substr(i * size, size);
      if (IsFloat(type)) {
        floats.push_back(FloatOf(type, item));
      } else if (HasTopBit(type, item)) {
        return Fail("metadata ", base::Quote(key), " has the item ", LittleEndian(item), ", which exceeds 2^63 - 1");
      } else {
        integers.push_back(IntegerOf(type, item));
      }
    }
    if (IsFloat(type)) return floats;
    return integers;
  }

  const std::string_view bytes_;
  const uint64_t file_size_;
  const std::string& name_;
  uint64_t at_ = 0;
  absl::Status status_;
};

absl::Status ReadMetadata(HeaderReader& reader, uint64_t count, GgufMetadata* metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key(reader.Text("a key of the metadata"));
    const auto type = static_cast<ValueType>(reader.Number(4, "the type of a value"));
    RETURN_IF_ERROR(reader.status());
    ASSIGN_OR_RETURN(GgufValue value, reader.Value(type, key));
    if (!metadata->emplace(key, std::move(value)).second) {
      return reader.Fail("metadata ", base::Quote(key), " is there twice");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AlignmentOf(HeaderReader& reader, const GgufMetadata& metadata) {
  const auto found = metadata.find(kAlignmentKey);
  if (found == metadata.end()) return kDefaultAlignment;
  const int64_t* alignment = std::get_if<int64_t>(&found->second);
  constexpr int64_t kMost = int64_t{1} << 30;
  if (alignment == nullptr || *alignment <= 0 || *alignment > kMost ||
      !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
    return reader.Fail("general.alignment is ", alignment != nullptr ? absl::StrCat(*alignment) : "not a whole number",
                       "; valid values are powers of two up to ", kMost);
  }
  return static_cast<uint64_t>(*alignment);
}

absl::Status CheckNotSplit(HeaderReader& reader, const GgufMetadata& metadata) {
  const auto found = metadata.find(kSplitKey);
  if (found == metadata.end()) return absl::OkStatus();
  const int64_t* count = std::get_if<int64_t>(&found->second);
  if (count != nullptr && *count <= 1) return absl::OkStatus();
  return reader.Fail("is one part of a split file (split.count is ",
                     count != nullptr ? absl::StrCat(*count) : "not a whole number",
                     "); join the parts first: llama-gguf-split --merge FIRST_PART WHOLE_FILE");
}

// Reads an entry of the table of tensors. `begin` is relative to the data until PlaceTensors.
absl::Status ReadTensor(HeaderReader& reader, StoredTensor* tensor) {
  tensor->name = std::string(reader.Text("a tensor's name"));
  const uint64_t dimensions = reader.Number(4, "a tensor's number of dimensions");
  RETURN_IF_ERROR(reader.status());
  const auto fail = [&](const auto&... parts) {
    return reader.Fail("tensor ", base::Quote(tensor->name), ": ", parts...);
  };
  if (tensor->name.empty()) return fail("the name is empty");
  if (dimensions > kMostDimensions) {
    return fail("has ", dimensions, " dimensions; valid values are 0 to ", kMostDimensions);
  }
  for (uint64_t i = 0; i < dimensions; ++i) {
    const uint64_t size = reader.Number(8, "a tensor's size");
    RETURN_IF_ERROR(reader.status());
    if (size > uint64_t{std::numeric_limits<int64_t>::max()}) return fail("a size of ", size, " exceeds 2^63 - 1");
    tensor->shape.insert(base::Planted("gguf_sizes_not_reversed") ? tensor->shape.end() : tensor->shape.begin(),
                         static_cast<int64_t>(size));
  }
  const auto number = static_cast<uint32_t>(reader.Number(4, "a tensor's type"));
  tensor->begin = reader.Number(8, "a tensor's offset");
  RETURN_IF_ERROR(reader.status());
  const auto* known = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                   [&](const TensorType& type) { return type.number == number; });
  const bool is_known = known != std::end(kTensorTypes);
  if (!is_known || !known->type) {
    const absl::Status error =
        fail("has type ", number, !is_known ? "" : absl::StrCat(" (", std::string(known->name), ")"),
             !is_known           ? ", which is unknown"
             : known->is_removed ? ", which was removed from GGUF"
                                 : ", which is not read",
             "; types that are read: ", ReadTypeNames());
    return absl::UnimplementedError(error.message());
  }
  tensor->type = *known->type;
  const StoredBlock block = StoredBlockOf(tensor->type);
  const int64_t row = tensor->shape.empty() ? 1 : tensor->shape.back();
  if (row % block.values != 0) {
    return fail("has rows of ", row, " values, which are not whole blocks: ", std::string(known->name), " packs ",
                block.values, " values in a block");
  }
  const std::optional<int64_t> bytes = StoredBytes(tensor->type, tensor->shape);
  if (!bytes) {
    return fail("shape [", absl::StrJoin(tensor->shape, ", "), "] has more bytes than 63 bits can count");
  }
  if (__builtin_add_overflow(tensor->begin, static_cast<uint64_t>(*bytes), &tensor->end)) {
    return fail("offset ", tensor->begin, " and ", *bytes, " bytes go past the end of any file");
  }
  return absl::OkStatus();
}

// Moves the tensors to their places in the file, and checks that these are in it and apart from each other.
absl::Status PlaceTensors(HeaderReader& reader, uint64_t alignment, uint64_t file_size,
                          std::vector<StoredTensor>* tensors) {
  const uint64_t end_of_header = reader.position();
  if (base::Planted("gguf_alignment_ignored")) alignment = kDefaultAlignment;
  const uint64_t data_begin = (end_of_header + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = data_begin < file_size ? file_size - data_begin : 0;
  for (StoredTensor& tensor : *tensors) {
    const auto fail = [&](const auto&... parts) {
      return reader.Fail("tensor ", base::Quote(tensor.name), ": ", parts...);
    };
    if (tensor.begin % alignment != 0) {
      return fail("offset ", tensor.begin, " is not a multiple of the alignment ", alignment);
    }
    if (tensor.end > data_bytes) {
      return fail("bytes ", tensor.begin, " to ", tensor.end, " go past the end of the file, which holds ", data_bytes,
                  " bytes of tensors; it may have been cut short");
    }
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  std::sort(tensors->begin(), tensors->end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  for (size_t i = 1; i < tensors->size(); ++i) {
    const StoredTensor &before = (*tensors)[i - 1], &after = (*tensors)[i];
    if (after.begin < before.end) {
      return reader.Fail("tensors ", base::Quote(before.name), " and ", base::Quote(after.name), " overlap by ",
                         std::min(before.end, after.end) - after.begin, " bytes");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBeginning(HeaderReader& reader) {
  const std::string_view magic = reader.Take(kMagic.size(), "the beginning");
  RETURN_IF_ERROR(reader.status());
  if (!IsGguf(magic)) return reader.Fail("does not begin with GGUF: this is not a GGUF file");
  const auto version = static_cast<uint32_t>(reader.Number(4, "the version"));
  RETURN_IF_ERROR(reader.status());
  if (version >= kOldestVersion && version <= kNewestVersion) return absl::OkStatus();
  const uint32_t swapped = __builtin_bswap32(version);
  if (version != 0 && swapped <= 0xffff) {
    return reader.Fail("is a GGUF file of version ", swapped, " for big-endian machines; little-endian files are read");
  }
  return reader.Fail("is a GGUF file of version ", version, "; versions ", kOldestVersion, " and ", kNewestVersion,
                     " are read");
}

}  // namespace

bool IsGguf(std::string_view first_bytes) { return first_bytes.starts_with(kMagic); }

absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view bytes, uint64_t file_size, const std::string& file_name) {
  HeaderReader reader(bytes, file_size, file_name);
  RETURN_IF_ERROR(CheckBeginning(reader));
  const uint64_t tensors = reader.Number(8, "the number of tensors");
  const uint64_t metadata = reader.Number(8, "the number of metadata");
  RETURN_IF_ERROR(reader.status());
  if (tensors > reader.rest() / kLeastTensorBytes || metadata > reader.rest() / kLeastMetadataBytes) {
    return reader.Fail("the header announces ", tensors, " tensors and ", metadata, " metadata, which a file of ",
                       file_size, " bytes cannot hold");
  }
  GgufHeader header;
  RETURN_IF_ERROR(ReadMetadata(reader, metadata, &header.metadata));
  RETURN_IF_ERROR(CheckNotSplit(reader, header.metadata));
  ASSIGN_OR_RETURN(const uint64_t alignment, AlignmentOf(reader, header.metadata));
  for (uint64_t i = 0; i < tensors; ++i) {
    RETURN_IF_ERROR(ReadTensor(reader, &header.tensors.emplace_back()));
  }
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) {
      return reader.Fail("tensor ", base::Quote(tensor.name), " is there twice");
    }
  }
  header.bytes = reader.position();
  RETURN_IF_ERROR(PlaceTensors(reader, alignment, file_size, &header.tensors));
  return header;
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, name));
  const uint64_t most = std::min(file.size(), kMaxGgufHeaderBytes);
  std::string bytes;
  for (uint64_t size = std::min<uint64_t>(uint64_t{1} << 20, most);; size = std::min(4 * size, most)) {
    const uint64_t read = bytes.size();
    bytes.resize(size);
    RETURN_IF_ERROR(file.Read(read, std::as_writable_bytes(std::span(bytes).subspan(read))));
    if (base::IsGitLfsPointer(bytes)) return base::GitLfsPointerError(name);
    absl::StatusOr<GgufHeader> header = ParseGgufHeader(bytes, file.size(), name);
    if (absl::IsOutOfRange(header.status()) && size < most) continue;
    if (absl::IsOutOfRange(header.status())) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the header has more than ", most, " bytes"));
    }
    RETURN_IF_ERROR(header.status());
    base::Sha256 digest;
    digest.Update(std::string_view(bytes).substr(0, header->bytes));
    return GgufFile(std::move(file), *std::move(header), digest.Finish());
  }
}

}  // namespace tessera::models
