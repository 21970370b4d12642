// BlobFile is a blob of the hub's cache that is being downloaded in pieces, several at once.
//
//     blobs/NAME.tessera.incomplete   its bytes, with gaps
//     blobs/NAME.tessera.progress     how many bytes of each piece are there
//
// A process that is killed loses none of the bytes that it wrote. After a power cut the record may be ahead of the
// bytes, which the digest of the whole file shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/file_descriptor.h"

namespace tessera::client {

// One thread writes; Read and Commit may be called by another.
class BlobFile {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

  // Opens what earlier runs left of the blob in the folder `blobs`, or creates it.
  static absl::StatusOr<BlobFile> Open(const std::string& blobs, const std::string& name, uint64_t size);

  size_t pieces() const { return present_.size(); }
  uint64_t Begin(size_t piece) const { return piece * kPieceBytes; }
  uint64_t End(size_t piece) const;
  // Offset of the first byte of the piece that is missing; End if none is.
  uint64_t Next(size_t piece) const { return Begin(piece) + present_[piece]; }

  uint64_t Present() const;  // bytes in all
  uint64_t Frontier();       // all bytes before this offset are there

  // The bytes of a piece must be written in order; `bytes` may reach into the next pieces. RESOURCE_EXHAUSTED if the
  // disk is full.
  absl::Status Write(uint64_t offset, std::string_view bytes);
  absl::Status Read(uint64_t offset, std::span<char> bytes) const;

  absl::Status Clear();  // forgets all bytes
  // Syncs the complete file, gives it the name `final_name` and deletes the record.
  absl::Status Commit(const std::string& final_name);

 private:
  BlobFile() = default;

  absl::Status SetPresent(size_t piece, uint32_t bytes);

  std::string blobs_, name_;
  uint64_t size_ = 0;
  base::FileDescriptor bytes_, progress_;
  std::vector<uint32_t> present_;  // bytes of each piece
  size_t first_open_ = 0;          // all pieces before this one are complete
};

}  // namespace tessera::client
