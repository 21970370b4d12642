// SafetensorsWriter writes one safetensors file (models/weights/safetensors.h describes the format) tensor by tensor,
// so that only the caller's buffer is in memory. A reader of the path sees either the complete file or its previous
// content.
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
#include "base/files/atomic_file.h"
#include "base/files/sha256.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// A tensor of a file to be written.
struct TensorEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
};

// Returns the bytes of such a file that precede the tensors' bytes. Errors are those of SafetensorsWriter::Create and
// contain `name`.
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
  // Writes the header. The tensors are stored in the given order; placing those with large elements first keeps all of
  // them aligned. Returns InvalidArgument for two tensors of one name, the name "__metadata__", a negative size, more
  // bytes than fit into 63 bits, and a header that readers would refuse; otherwise the errors of base::AtomicFile, such
  // as ResourceExhausted for a full disk.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path, std::vector<TensorEntry> tensors,
                                                  const std::map<std::string, std::string>& metadata);

  // Appends the next bytes of the next tensor, whose name is passed to detect a wrong order. Returns FailedPrecondition
  // if a different tensor is next or if it has fewer bytes left; otherwise the errors of base::AtomicFile.
  absl::Status Append(std::string_view tensor, std::span<const std::byte> bytes);

  // Makes the file durable and moves it to its path. Returns FailedPrecondition, naming the tensor, if bytes are
  // missing.
  absl::StatusOr<WrittenFile> Finish();

 private:
  SafetensorsWriter(base::AtomicFile file, std::vector<TensorEntry> tensors);

  absl::Status Put(std::string_view bytes);
  // Advances past the tensors that are complete.
  void SkipComplete();

  base::AtomicFile file_;
  std::vector<TensorEntry> tensors_;
  size_t next_ = 0;   // index in tensors_ of the tensor that is being written
  uint64_t due_ = 0;  // bytes of it that are still missing
  uint64_t file_bytes_ = 0;
  base::Sha256 digest_;
};

}  // namespace tessera::models
