// Parts of weight files, read by several threads ahead of the one that uses them: reading overlaps with what that does,
// and a disk is asked for several parts at a time.
//
// The parts come in turns. A turn's bytes go into the buffer that it has been given, of which there are few, or
// straight to where they are to stay. When the user has done with a turn its buffer is another one's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "models/weights/weight_folder.h"

namespace tessera::models {

// Rows of a stored tensor, one after another there, and what is kept of each of them. All in bytes.
struct FileRead {
  struct Run {
    int64_t begin = 0, count = 0;
  };

  const WeightFolder::Location* location = nullptr;
  int64_t offset = 0;  // of the first row
  int64_t rows = 1;
  int64_t row_bytes = 0;
  std::vector<Run> kept;    // of a row, side by side; empty: all of it
  std::byte* to = nullptr;  // null: into the turn's buffer
  int64_t buffered_at = 0;  // in that

  int64_t kept_bytes() const;
};

using ReadTurn = std::vector<FileRead>;

// Await and Release are called by one thread, turn by turn.
class ReadAhead final {
 public:
  // What it is given outlives it. As many threads read as there are buffers; turn i has buffer i modulo their number.
  ReadAhead(const WeightFolder& folder, std::span<const ReadTurn> turns, std::span<const std::span<std::byte>> buffers);
  // Begins no further turn.
  ~ReadAhead();

  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Waits until the turn has been read. Its error is that of WeightFolder::Read.
  absl::Status Await(size_t turn);

  // All turns before this one are done with.
  void ReleaseBefore(size_t turn);

 private:
  void ReadTurns();
  absl::Status Read(const FileRead& read, std::span<std::byte> buffer, std::vector<std::byte>& whole_rows) const;

  const WeightFolder& folder_;
  const std::span<const ReadTurn> turns_;
  const std::span<const std::span<std::byte>> buffers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;                                   // guarded by mutex_: the first that nobody reads
  size_t released_ = 0;                               // guarded by mutex_: so many are done with
  bool ending_ = false;                               // guarded by mutex_
  std::vector<std::optional<absl::Status>> results_;  // guarded by mutex_

  std::vector<std::thread> readers_;
};

}  // namespace tessera::models
