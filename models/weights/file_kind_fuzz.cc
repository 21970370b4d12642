// Classifies a file with arbitrary names. A line of the input is a tensor's name; "@ KEY=VALUE" is a value of the
// metadata, "# NAME=TEXT" a marker of ComfyUI, and "!" alone makes it a GGUF file.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "models/weights/derived_config.h"
#include "models/weights/file_kind.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::models;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<StoredTensor> tensors;
  FileHeader header;
  for (const absl::string_view line : std::vector<absl::string_view>(absl::StrSplit(text, '\n'))) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(line.substr(std::min<size_t>(2, line.size())), absl::MaxSplits('=', 1));
    if (line == "!") {
      header.container = FileContainer::kGguf;
    } else if (line.substr(0, 2) == "@ ") {
      header.metadata.insert(pair);
    } else if (line.substr(0, 2) == "# ") {
      header.markers.insert(pair);
    } else {
      tensors.push_back({.name = std::string(line), .shape = {static_cast<int64_t>(line.size()), 4, 2, 2}});
    }
  }
  header.tensors = tensors;
  const FileKind kind = KindOf(header);
  const absl::Status usable = CheckUsable(kind, "file");
  for (const FilePart& part : kind.parts) {
    if (part.class_name.empty() || part.tensors == 0) std::abort();
    TensorShapes shapes;
    for (const StoredTensor& tensor : tensors) {
      if (std::string_view(tensor.name).starts_with(part.prefix)) {
        shapes.emplace(tensor.name.substr(part.prefix.size()), tensor.shape);
      }
    }
    (void)DeriveConfig(part.class_name, shapes, part.form, "FluxPipeline", "vae");
    const absl::StatusOr<FilePart> found = PartFor(kind, "file", "transformer", "FluxTransformer2DModel");
    if (found.ok() && !usable.ok()) std::abort();
  }
  return 0;
}
