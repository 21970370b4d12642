#include "server/image/exif.h"

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/macros/status_macros.h"
#include "server/image/character_sets.h"

namespace tessera::server {
namespace {

constexpr uint16_t kTagOrientation = 0x0112;
constexpr uint16_t kTagExifIfd = 0x8769;
constexpr uint16_t kTagExifVersion = 0x9000;
constexpr uint16_t kTagUserComment = 0x9286;
constexpr uint16_t kTypeShort = 3;
constexpr uint16_t kTypeLong = 4;
constexpr uint16_t kTypeUndefined = 7;
constexpr size_t kEntryBytes = 12;
constexpr size_t kCharacterCodeBytes = 8;
constexpr std::string_view kUnicodeCode("UNICODE\0", 8);
constexpr std::string_view kAsciiCode("ASCII\0\0\0", 8);

void AppendShort(uint16_t value, std::string& out) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value & 0xFF));
}

void AppendLong(uint32_t value, std::string& out) {
  AppendShort(static_cast<uint16_t>(value >> 16), out);
  AppendShort(static_cast<uint16_t>(value & 0xFFFF), out);
}

// Bounds-checked reads of a TIFF block.
class TiffReader final {
 public:
  TiffReader(std::string_view bytes, ByteOrder order) : bytes_(bytes), order_(order) {}

  std::optional<std::string_view> Bytes(size_t offset, size_t count) const {
    if (offset > bytes_.size() || count > bytes_.size() - offset) return std::nullopt;
    return bytes_.substr(offset, count);
  }

  ByteOrder order() const { return order_; }

  std::optional<uint32_t> Short(size_t offset) const { return Number(offset, 2); }
  std::optional<uint32_t> Long(size_t offset) const { return Number(offset, 4); }

  struct Entry {
    size_t value_offset = 0;  // offset of the 4-byte value field in the block
    uint32_t type = 0;
    uint32_t count = 0;
  };

  // Returns the entry of `tag` in the directory at `directory`, or an entry with count 0 and type 0 if there is none.
  absl::StatusOr<Entry> Find(size_t directory, uint16_t tag) const {
    const std::optional<uint32_t> entries = Short(directory);
    if (!entries || !Bytes(directory + 2, *entries * kEntryBytes)) {
      return absl::DataLossError("the EXIF block is damaged: a directory lies outside it");
    }
    for (size_t i = 0; i < *entries; ++i) {
      const size_t at = directory + 2 + i * kEntryBytes;
      if (*Short(at) == tag) return Entry{.value_offset = at + 8, .type = *Short(at + 2), .count = *Long(at + 4)};
    }
    return Entry{};
  }

 private:
  std::optional<uint32_t> Number(size_t offset, size_t size) const {
    const std::optional<std::string_view> bytes = Bytes(offset, size);
    if (!bytes) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      const size_t from = order_ == ByteOrder::kBigEndian ? i : size - 1 - i;
      value = value << 8 | static_cast<uint8_t>((*bytes)[from]);
    }
    return value;
  }

  const std::string_view bytes_;
  const ByteOrder order_;
};

// `exif` may begin with "Exif\0\0".
absl::StatusOr<TiffReader> OpenTiff(std::string_view exif) {
  if (exif.substr(0, kExifMarker.size()) == kExifMarker) exif.remove_prefix(kExifMarker.size());
  const std::string_view magic = exif.substr(0, 4);
  const bool big_endian = magic == std::string_view("MM\0*", 4);
  if (!big_endian && magic != std::string_view("II*\0", 4)) {
    return absl::DataLossError("the EXIF block is damaged: it has no TIFF header");
  }
  return TiffReader(exif, big_endian ? ByteOrder::kBigEndian : ByteOrder::kLittleEndian);
}

// Cameras fill unused comment space with NUL and blanks.
std::string_view WithoutPadding(std::string_view text) {
  const size_t last = text.find_last_not_of(std::string_view("\0 ", 2));
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

std::string BuildExif(std::string_view comment) {
  constexpr uint32_t kExifIfdOffset = 8 + 2 + kEntryBytes + 4;
  constexpr uint32_t kCommentOffset = kExifIfdOffset + 2 + 2 * kEntryBytes + 4;
  const std::string utf16 = Utf8ToUtf16BigEndian(comment);
  std::string out;
  out.reserve(kCommentOffset + kCharacterCodeBytes + utf16.size());
  out.append(std::string_view("MM\0*", 4));
  AppendLong(8, out);

  AppendShort(1, out);
  AppendShort(kTagExifIfd, out);
  AppendShort(kTypeLong, out);
  AppendLong(1, out);
  AppendLong(kExifIfdOffset, out);
  AppendLong(0, out);

  AppendShort(2, out);
  AppendShort(kTagExifVersion, out);
  AppendShort(kTypeUndefined, out);
  AppendLong(4, out);
  out.append("0232");
  AppendShort(kTagUserComment, out);
  AppendShort(kTypeUndefined, out);
  AppendLong(static_cast<uint32_t>(kCharacterCodeBytes + utf16.size()), out);
  AppendLong(kCommentOffset, out);
  AppendLong(0, out);

  out.append(kUnicodeCode);
  out.append(utf16);
  return out;
}

absl::StatusOr<std::string> ReadExifUserComment(std::string_view exif) {
  ASSIGN_OR_RETURN(const TiffReader tiff, OpenTiff(exif));
  const std::optional<uint32_t> first_directory = tiff.Long(4);
  if (!first_directory) return absl::DataLossError("the EXIF block is damaged: it ends inside its header");

  ASSIGN_OR_RETURN(const TiffReader::Entry pointer, tiff.Find(*first_directory, kTagExifIfd));
  if (pointer.count == 0) return std::string();
  ASSIGN_OR_RETURN(const TiffReader::Entry entry, tiff.Find(*tiff.Long(pointer.value_offset), kTagUserComment));
  if (entry.count < kCharacterCodeBytes || entry.type != kTypeUndefined) return std::string();
  const std::optional<std::string_view> comment = tiff.Bytes(*tiff.Long(entry.value_offset), entry.count);
  if (!comment) return absl::DataLossError("the EXIF block is damaged: its UserComment lies outside it");

  const std::string_view code = comment->substr(0, kCharacterCodeBytes);
  const std::string_view text = comment->substr(kCharacterCodeBytes);
  if (code == kUnicodeCode) return std::string(WithoutPadding(Utf16ToUtf8(text, tiff.order())));
  if (code == kAsciiCode && IsUtf8(text)) return std::string(WithoutPadding(text));
  return std::string();
}

int ReadExifOrientation(std::string_view exif) {
  const absl::StatusOr<TiffReader> tiff = OpenTiff(exif);
  if (!tiff.ok()) return 1;
  const std::optional<uint32_t> first_directory = tiff->Long(4);
  if (!first_directory) return 1;
  const absl::StatusOr<TiffReader::Entry> entry = tiff->Find(*first_directory, kTagOrientation);
  if (!entry.ok() || entry->type != kTypeShort || entry->count != 1) return 1;
  const uint32_t value = tiff->Short(entry->value_offset).value_or(1);
  return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
}

}  // namespace tessera::server
