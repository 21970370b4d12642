#include "client/cli/pull/blob_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::client {
namespace {

static_assert(std::endian::native == std::endian::little, "the record has the machine's byte order");

// The record begins with this text and the file's size; a number of 4 bytes for each piece follows.
constexpr std::array<char, 8> kRecordMark = {'t', 'e', 's', 's', 'e', 'r', 'a', '1'};
constexpr off_t kRecordHeaderBytes = 16;

absl::Status WriteFailure(int error, const std::string& folder) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space is left in ", folder, ": ", std::strerror(error),
                     "; what has been downloaded is kept, and the same command continues with it"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write in ", folder));
}

// Returns 0 or the errno of the failure.
int WriteAt(int file, const char* data, size_t size, off_t offset) {
  while (size > 0) {
    const ssize_t written = ::pwrite(file, data, size, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    data += written;
    size -= static_cast<size_t>(written);
    offset += written;
  }
  return 0;
}

bool ReadAt(int file, char* data, size_t size, off_t offset) {
  while (size > 0) {
    const ssize_t read = ::pread(file, data, size, offset);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    data += read;
    size -= static_cast<size_t>(read);
    offset += read;
  }
  return true;
}

// Links are refused: a file elsewhere must not be overwritten.
base::FileDescriptor OpenForWriting(const std::string& path) {
  return base::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
}

std::string BytesPath(const std::string& blobs, const std::string& name) {
  return absl::StrCat(blobs, "/", name, ".tessera.incomplete");
}

std::string ProgressPath(const std::string& blobs, const std::string& name) {
  return absl::StrCat(blobs, "/", name, ".tessera.progress");
}

}  // namespace

uint64_t BlobFile::End(size_t piece) const { return std::min(size_, Begin(piece + 1)); }

absl::StatusOr<BlobFile> BlobFile::Open(const std::string& blobs, const std::string& name, uint64_t size) {
  BlobFile blob;
  blob.blobs_ = blobs;
  blob.name_ = name;
  blob.size_ = size;
  blob.present_.resize((size + kPieceBytes - 1) / kPieceBytes);
  blob.bytes_ = OpenForWriting(BytesPath(blobs, name));
  if (!blob.bytes_.valid()) return WriteFailure(errno, blobs);
  blob.progress_ = OpenForWriting(ProgressPath(blobs, name));
  if (!blob.progress_.valid()) return WriteFailure(errno, blobs);

  std::array<char, 8> mark;
  uint64_t recorded_size = 0;
  struct stat state;
  const bool is_known =
      ReadAt(blob.progress_.get(), mark.data(), mark.size(), 0) && mark == kRecordMark &&
      ReadAt(blob.progress_.get(), reinterpret_cast<char*>(&recorded_size), sizeof(recorded_size), 8) &&
      recorded_size == size && ::fstat(blob.bytes_.get(), &state) == 0 &&
      static_cast<uint64_t>(state.st_size) == size &&
      ReadAt(blob.progress_.get(), reinterpret_cast<char*>(blob.present_.data()),
             blob.present_.size() * sizeof(uint32_t), kRecordHeaderBytes);
  bool is_valid = is_known;
  for (size_t piece = 0; is_valid && piece < blob.pieces(); ++piece) is_valid = blob.Next(piece) <= blob.End(piece);
  if (!is_valid) RETURN_IF_ERROR(blob.Clear());
  return blob;
}

absl::Status BlobFile::Clear() {
  std::ranges::fill(present_, 0);
  first_open_ = 0;
  const auto record = [&](const void* data, size_t size, off_t at) {
    return WriteAt(progress_.get(), static_cast<const char*>(data), size, at);
  };
  if (::ftruncate(progress_.get(), 0) != 0 || ::ftruncate(bytes_.get(), 0) != 0 ||
      ::ftruncate(bytes_.get(), static_cast<off_t>(size_)) != 0) {
    return WriteFailure(errno, blobs_);
  }
  int error = record(kRecordMark.data(), kRecordMark.size(), 0);
  if (error == 0) error = record(&size_, sizeof(size_), 8);
  if (error == 0) error = record(present_.data(), present_.size() * sizeof(uint32_t), kRecordHeaderBytes);
  return error == 0 ? absl::OkStatus() : WriteFailure(error, blobs_);
}

uint64_t BlobFile::Present() const { return std::accumulate(present_.begin(), present_.end(), uint64_t{0}); }

uint64_t BlobFile::Frontier() {
  while (first_open_ < pieces() && Next(first_open_) == End(first_open_)) ++first_open_;
  return first_open_ < pieces() ? Next(first_open_) : size_;
}

absl::Status BlobFile::SetPresent(size_t piece, uint32_t bytes) {
  present_[piece] = std::max(present_[piece], bytes);
  const int error = WriteAt(progress_.get(), reinterpret_cast<const char*>(&present_[piece]), sizeof(uint32_t),
                            kRecordHeaderBytes + static_cast<off_t>(piece * sizeof(uint32_t)));
  return error == 0 ? absl::OkStatus() : WriteFailure(error, blobs_);
}

absl::Status BlobFile::Write(uint64_t offset, std::string_view bytes) {
  if (const int error = WriteAt(bytes_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); error != 0) {
    return WriteFailure(error, blobs_);
  }
  const uint64_t end = offset + bytes.size();
  for (size_t piece = offset / kPieceBytes; piece < pieces() && Begin(piece) < end; ++piece) {
    RETURN_IF_ERROR(SetPresent(piece, static_cast<uint32_t>(std::min(end, End(piece)) - Begin(piece))));
  }
  return absl::OkStatus();
}

absl::Status BlobFile::Read(uint64_t offset, std::span<char> bytes) const {
  if (ReadAt(bytes_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset))) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot read what was downloaded in ", blobs_));
}

absl::Status BlobFile::Commit(const std::string& final_name) {
  const std::string path = absl::StrCat(blobs_, "/", final_name);
  if (::fsync(bytes_.get()) != 0 || ::rename(BytesPath(blobs_, name_).c_str(), path.c_str()) != 0) {
    return WriteFailure(errno, blobs_);
  }
  ::unlink(ProgressPath(blobs_, name_).c_str());
  return absl::OkStatus();
}

}  // namespace tessera::client
