// Parses any bytes as a journal line, which any process may have written: an accepted line is written back identically
// and names no file outside the run's image folder.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "client/cli/batch/run_journal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::client::JournalLine;
  using tessera::client::ReadJournalLine;
  const auto entry = ReadJournalLine(std::string(reinterpret_cast<const char*>(data), size));
  if (!entry.has_value()) return 0;
  for (const auto& image : entry->images) {
    if (!absl::StartsWith(image.file, "images/") || absl::StrContains(image.file, "..")) std::abort();
  }
  const std::string line = JournalLine(*entry);
  const auto again = ReadJournalLine(line);
  if (!again.has_value() || JournalLine(*again) != line) std::abort();
  return 0;
}
