#include "server/backup/archive_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

absl::Status Refused(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("the archive is damaged: ", problem));
}

}  // namespace

absl::StatusOr<std::string> ArchiveReader::ReadExactly(size_t count) {
  std::string bytes;
  while (bytes.size() < count) {
    ASSIGN_OR_RETURN(const std::string more, source_(count - bytes.size()));
    if (more.empty()) return absl::InvalidArgumentError("the archive is truncated: it is not a complete backup");
    bytes += more;
  }
  return bytes;
}

absl::StatusOr<std::optional<TarEntry>> ArchiveReader::Next() {
  ASSIGN_OR_RETURN(const std::string block, ReadExactly(kTarBlock));
  ASSIGN_OR_RETURN(current_, ParseTarHeader(block));
  if (!current_) return absl::InvalidArgumentError("the archive has no manifest: it is not a complete backup");
  if (current_->name == kManifestName) {
    RETURN_IF_ERROR(ReadManifest(current_->bytes));
    current_.reset();
    return std::optional<TarEntry>();
  }
  RETURN_IF_ERROR(CheckBackedUpName(current_->name));
  if (files_.contains(current_->name)) {
    return absl::InvalidArgumentError(absl::StrCat("the archive has two entries ", base::Quote(current_->name)));
  }
  return current_;
}

absl::Status ArchiveReader::ReadFile(absl::FunctionRef<absl::Status(std::string_view)> take) {
  base::Sha256 digest;
  for (uint64_t left = current_->bytes; left > 0;) {
    ASSIGN_OR_RETURN(const std::string piece, ReadExactly(std::min(left, kPieceBytes)));
    digest.Update(piece);
    RETURN_IF_ERROR(take(piece));
    left -= piece.size();
  }
  RETURN_IF_ERROR(ReadExactly(TarPadding(current_->bytes)).status());
  files_[current_->name] = {.bytes = current_->bytes, .sha256 = digest.Finish()};
  return absl::OkStatus();
}

absl::Status ArchiveReader::ReadManifest(uint64_t bytes) {
  if (bytes > kMaxManifestBytes) return Refused("its manifest is too large");
  std::string text;
  while (text.size() < bytes) {
    ASSIGN_OR_RETURN(const std::string piece, ReadExactly(std::min(bytes - text.size(), kPieceBytes)));
    text += piece;
  }
  RETURN_IF_ERROR(ReadExactly(TarPadding(bytes)).status());
  ASSIGN_OR_RETURN(manifest_, ParseManifest(text));
  RETURN_IF_ERROR(CheckEnd());
  for (const auto& [name, file] : manifest_.files) {
    const auto read = files_.find(name);
    if (read == files_.end()) return Refused(absl::StrCat("it lacks ", base::Quote(name)));
    if (read->second != file) return Refused(absl::StrCat(base::Quote(name), " differs from its digest"));
  }
  if (files_.size() != manifest_.files.size()) return Refused("it has a file that its manifest does not list");
  return absl::OkStatus();
}

// Two blocks of zeros end an archive; tar pads it with more.
absl::Status ArchiveReader::CheckEnd() {
  ASSIGN_OR_RETURN(std::string rest, ReadExactly(2 * kTarBlock));
  while (!rest.empty()) {
    if (rest.find_first_not_of('\0') != rest.npos) return Refused("something follows its manifest");
    ASSIGN_OR_RETURN(rest, source_(kPieceBytes));
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
