#include "server/backup/tar.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

// A field of the header.
struct TarField {
  size_t offset, bytes;
};

constexpr TarField kName{0, 100}, kMode{100, 8}, kOwner{108, 8}, kGroup{116, 8}, kSize{124, 12}, kModified{136, 12},
    kChecksum{148, 8}, kKind{156, 1}, kMagic{257, 8}, kPrefix{345, 155};
constexpr std::string_view kUstar("ustar\00000", 8);
constexpr uint64_t kMostOctal = 077777777777;  // of 11 digits

std::string_view TextOf(std::string_view block, TarField field) {
  const std::string_view text = block.substr(field.offset, field.bytes);
  return text.substr(0, text.find('\0'));
}

void Put(std::string& block, TarField field, std::string_view text) { block.replace(field.offset, text.size(), text); }

// The sum of all bytes, where those of the checksum count as spaces.
uint64_t ChecksumOf(std::string_view block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool is_checksum = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.bytes;
    sum += is_checksum ? uint64_t{' '} : static_cast<unsigned char>(block[i]);
  }
  return sum;
}

// Returns the number of an octal field, which spaces or zero bytes may surround; nullopt for other texts.
std::optional<uint64_t> OctalOf(std::string_view field) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  uint64_t number = 0;
  size_t digits = 0;
  for (; digits < field.size() && field[digits] >= '0' && field[digits] <= '7'; ++digits) {
    number = number * 8 + static_cast<uint64_t>(field[digits] - '0');
  }
  const std::string_view rest = field.substr(digits);
  if (digits == 0 || rest.find_first_not_of(std::string_view(" \0", 2)) != rest.npos) return std::nullopt;
  return number;
}

std::optional<uint64_t> NumberOf(std::string_view field) {
  if (field[0] != '\x80') return OctalOf(field);
  uint64_t number = 0;
  for (const char byte : field.substr(1)) {
    if (number >> 55 != 0) return std::nullopt;  // no file has that many bytes
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

}  // namespace

absl::StatusOr<std::string> TarHeader(const TarEntry& entry) {
  std::string block(kTarBlock, '\0');
  std::string_view name = entry.name;
  if (name.size() > kName.bytes) {
    // The name is divided at a slash, which is in neither part.
    const size_t slash = name.find('/', name.size() - kName.bytes - 1);
    if (slash == name.npos || slash == 0 || slash > kPrefix.bytes || slash + 1 == name.size()) {
      return absl::InvalidArgumentError("a file's name is too long for an archive");
    }
    Put(block, kPrefix, name.substr(0, slash));
    name.remove_prefix(slash + 1);
  }
  Put(block, kName, name);
  Put(block, kMode, "0000600");
  Put(block, kOwner, "0000000");
  Put(block, kGroup, "0000000");
  if (entry.bytes <= kMostOctal) {
    Put(block, kSize, absl::StrFormat("%011o", entry.bytes));
  } else {
    block[kSize.offset] = '\x80';
    for (size_t i = 0; i < 8; ++i) {
      block[kSize.offset + kSize.bytes - 1 - i] = static_cast<char>(entry.bytes >> (8 * i) & 0xff);
    }
  }
  const auto modified = static_cast<uint64_t>(std::max<int64_t>(entry.modified_s, 0));
  Put(block, kModified, absl::StrFormat("%011o", std::min(modified, kMostOctal)));
  Put(block, kKind, "0");
  Put(block, kMagic, kUstar);
  Put(block, kChecksum, absl::StrFormat("%06o", ChecksumOf(block)) + std::string("\0 ", 2));
  return block;
}

absl::StatusOr<std::optional<TarEntry>> ParseTarHeader(std::string_view block) {
  if (block.find_first_not_of('\0') == block.npos) return std::optional<TarEntry>();
  const auto field = [&](TarField of) { return block.substr(of.offset, of.bytes); };
  if (OctalOf(field(kChecksum)) != ChecksumOf(block) || field(kMagic) != kUstar) {
    return absl::InvalidArgumentError("the archive is damaged or not a tar archive: an entry's header is invalid");
  }
  TarEntry entry;
  const std::string_view prefix = TextOf(block, kPrefix);
  if (!prefix.empty()) entry.name.append(prefix).append("/");
  entry.name.append(TextOf(block, kName));
  if (const char kind = block[kKind.offset]; kind != '0' && kind != '\0') {
    return absl::InvalidArgumentError("the archive has an entry that is not a regular file, such as a link");
  }
  const std::optional<uint64_t> bytes = NumberOf(field(kSize)), modified = NumberOf(field(kModified));
  if (!bytes || !modified)
    return absl::InvalidArgumentError("the archive is damaged: an entry has no valid size or time");
  entry.bytes = *bytes;
  entry.modified_s = static_cast<int64_t>(std::min(*modified, kMostOctal));
  return entry;
}

}  // namespace tessera::server
