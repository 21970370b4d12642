// ByteSource is a sequence of bytes of known length that is read piece by piece, so that a sender never holds all of
// it: a file, a text, or a transformation of other sources.
//
// Immutable and thread-safe. A read may wait for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::base {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual uint64_t size() const = 0;

  // Returns `count` bytes starting at `offset`, or fewer at the end of the source. Returns an error if the bytes can no
  // longer be read as they were when the source was created.
  virtual absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const = 0;
};

using SharedBytes = std::shared_ptr<const ByteSource>;

SharedBytes BytesOf(std::string text);
SharedBytes Joined(std::vector<SharedBytes> parts);
// Base64 with padding (RFC 4648, section 4).
SharedBytes InBase64(SharedBytes bytes);

absl::StatusOr<std::string> ReadAll(const ByteSource& bytes);

}  // namespace tessera::base
