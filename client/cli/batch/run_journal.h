// Converts the lines of a run's journals and manifest to text and back. Pure functions.
//
// A journal line says how an item ended. An item that is made again, because it failed or its files were lost, has
// several lines with attempt numbers; the last attempt counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/image/image_format.h"

namespace tessera::client {

struct RunImage {
  std::string file;  // path below the folder of the run
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
};  // lost: it was done, but its files have changed or disappeared

// An item that has ended.
struct RunEntry {
  int64_t index = 0;
  std::string item_digest;
  std::string custom_id;
  std::vector<RunImage> images;  // if it is done
  absl::Status error;            // if it has failed
  double seconds = 0;            // from its submission to its end
  int64_t attempt = 0;           // how many times it had ended before this attempt
  bool lost = false;

  RunState state() const { return lost ? RunState::kLost : error.ok() ? RunState::kDone : RunState::kFailed; }
};

// Returns an image's path below the run's folder: images/000/000123.png, or 000123-1.png if the item has several.
std::string RunImageName(int64_t item, int32_t image, int32_t images, server::ImageFormat format);

// Return a line including its end. The manifest omits the values that differ from run to run.
std::string JournalLine(const RunEntry& entry);
std::string ManifestLine(const RunEntry& entry);

// Returns nullopt if the text is not a journal line, or if it names files other than those of the item's images: a
// modified journal must not make a process read or write other files.
std::optional<RunEntry> ReadJournalLine(const std::string& text);

// Merges a line into `entries`; the order of lines of the same item does not matter.
void AddEntry(RunEntry entry, std::map<int64_t, RunEntry>& entries);

}  // namespace tessera::client
