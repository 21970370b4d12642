// What a run keeps of its items: the lines of its journals and of its manifest, as text and back. Pure functions.
//
// A line of a journal says how an item has ended. One that is made again, because it had failed or because its files
// were lost, has several, which count their attempts: the last attempt is what has become of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/image/image_file.h"

namespace tessera::client {

struct RunImage {
  std::string file;  // below the folder of the run
  uint64_t seed = 0;
  int32_t width = 0;
  int32_t height = 0;
  uint64_t bytes = 0;
  std::string digest;  // SHA-256 of the file, 64 hexadecimal digits
};

enum class RunState : uint8_t {
  kDone,
  kFailed,
  kLost
};  // lost: it was done, and its files are no longer what they were

// An item that has ended.
struct RunEntry {
  int64_t index = 0;
  std::string item_digest;
  std::string custom_id;
  std::vector<RunImage> images;  // of one that is done
  absl::Status error;            // of one that has failed
  double seconds = 0;            // from its submission to its end
  int64_t attempt = 0;           // how often it had ended before and was made again
  bool lost = false;

  RunState state() const { return lost ? RunState::kLost : error.ok() ? RunState::kDone : RunState::kFailed; }
};

// The name of an image below the folder of the run: images/000/000123.png, or 000123-1.png where there are several.
std::string RunImageName(int64_t item, int32_t image, int32_t images, server::ImageFormat format);

// With the end of line. The manifest leaves out what differs from run to run.
std::string JournalLine(const RunEntry& entry);
std::string ManifestLine(const RunEntry& entry);

// Nothing where the text is no line of a journal: also where it names files other than those that the item's images
// have, so that who can write a journal makes nobody read or write elsewhere.
std::optional<RunEntry> ReadJournalLine(const std::string& text);

// Adds what a line says to what others have said of the same item, in whatever order they come.
void AddEntry(RunEntry entry, std::map<int64_t, RunEntry>& entries);

}  // namespace tessera::client
