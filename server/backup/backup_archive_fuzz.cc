// Fuzz test: any bytes are either refused or an archive of files with valid names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/backup/archive_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto parsed = tessera::server::ParseManifest(rest);
  if (parsed.ok()) {
    const auto again = tessera::server::ParseManifest(tessera::server::ManifestText(*parsed));
    if (!again.ok() || *again != *parsed) std::abort();
  }
  tessera::server::ArchiveReader archive([&](size_t count) -> absl::StatusOr<std::string> {
    const std::string piece(rest.substr(0, count));
    rest.remove_prefix(piece.size());
    return piece;
  });
  while (true) {
    const auto entry = archive.Next();
    if (!entry.ok() || !entry->has_value()) return 0;
    if (!tessera::server::CheckBackedUpName((*entry)->name).ok()) std::abort();
    if (!archive.ReadFile([](std::string_view) { return absl::OkStatus(); }).ok()) return 0;
  }
}
