#include "models/weights/any_tensor_file.h"

#include <algorithm>
#include <span>

#include "base/files/file.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<AnyTensorFile> OpenTensorFile(const std::string& path, const std::string& name) {
  std::string begins(4, '\0');
  {
    ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, name));
    begins.resize(std::min<uint64_t>(begins.size(), file.size()));
    RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(begins))));
  }
  if (IsGguf(begins)) {
    ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path, name));
    return file;
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, name));
  return file;
}

}  // namespace tessera::models
