// Writes one safetensors file (models/weights/safetensors.h has the format), tensor by tensor, so that no more than the
// caller's own buffer is in memory. A reader of the path sees the complete file or what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/atomic_file.h"
#include "base/sha256.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// A tensor of a file that is to be written.
struct TensorEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
};

// The bytes of such a file before those of its tensors; errors as SafetensorsWriter::Create, in which `name` appears.
absl::StatusOr<std::string> SafetensorsHeaderBytes(const std::vector<TensorEntry>& tensors,
                                                   const std::map<std::string, std::string>& metadata,
                                                   const std::string& name);

// A file that has been written.
struct WrittenFile {
  uint64_t bytes = 0;
  std::string sha256;  // of the whole file, hexadecimal
};

// Movable; one thread at a time.
class SafetensorsWriter {
 public:
  // Writes the header. The tensors lie in the file in the order in which they are given; those of large elements first
  // keeps all of them aligned. InvalidArgument: two tensors of one name, the name "__metadata__", a negative size, more
  // bytes than 63 bits count, a header that readers would refuse; else as base::AtomicFile: ResourceExhausted for a
  // full disk.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path, std::vector<TensorEntry> tensors,
                                                  const std::map<std::string, std::string>& metadata);

  // The next bytes of the next tensor, which is named so that a mistake of order cannot pass. FailedPrecondition if
  // another tensor is due or has no room for that many; else as base::AtomicFile.
  absl::Status Append(std::string_view tensor, std::span<const std::byte> bytes);

  // Makes the file durable and puts it at its path. FailedPrecondition, naming the tensor, if bytes are still due.
  absl::StatusOr<WrittenFile> Finish();

 private:
  SafetensorsWriter(base::AtomicFile file, std::vector<TensorEntry> tensors);

  absl::Status Put(std::string_view bytes);
  // Leaves behind the tensors that are complete.
  void SkipComplete();

  base::AtomicFile file_;
  std::vector<TensorEntry> tensors_;
  size_t next_ = 0;   // of tensors_, that bytes are due of
  uint64_t due_ = 0;  // bytes of it
  uint64_t file_bytes_ = 0;
  base::Sha256 digest_;
};

}  // namespace tessera::models
