// ReadAhead reads parts of weight files on several threads, ahead of the thread that uses them: reading overlaps with
// that thread's work, and the disk serves several requests at a time.
//
// The parts are grouped into turns. A turn's bytes go into the buffer assigned to it (there are few buffers) or
// directly to their destination. After a turn has been released, its buffer is reused.
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

// Consecutive rows of a stored tensor, and which part of each row is kept. All sizes are in bytes.
struct FileRead {
  struct Run {
    int64_t begin = 0, count = 0;
  };

  const WeightFolder::Location* location = nullptr;
  int64_t offset = 0;  // of the first row
  int64_t rows = 1;
  int64_t row_bytes = 0;
  std::vector<Run> kept;    // parts of each row, concatenated; empty if whole rows are kept
  std::byte* to = nullptr;  // null: into the turn's buffer
  int64_t buffered_at = 0;  // offset in the turn's buffer

  int64_t kept_bytes() const;
};

using ReadTurn = std::vector<FileRead>;

// Await and ReleaseBefore are called by one thread, turn by turn.
class ReadAhead final {
 public:
  // The arguments outlive this object. There are as many reading threads as buffers; turn i uses buffer i modulo their
  // number.
  ReadAhead(const WeightFolder& folder, std::span<const ReadTurn> turns, std::span<const std::span<std::byte>> buffers);
  // Starts no further turn and waits for the reading threads.
  ~ReadAhead();

  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Waits until the turn has been read. Returns the errors of WeightFolder::Read.
  absl::Status Await(size_t turn);

  // Declares that all turns before this one are no longer used.
  void ReleaseBefore(size_t turn);

 private:
  void ReadTurns();
  absl::Status Read(const FileRead& read, std::span<std::byte> buffer, std::vector<std::byte>& whole_rows) const;

  const WeightFolder& folder_;
  const std::span<const ReadTurn> turns_;
  const std::span<const std::span<std::byte>> buffers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;                                   // guarded by mutex_: the first turn that no thread reads yet
  size_t released_ = 0;                               // guarded by mutex_: number of turns that are no longer used
  bool ending_ = false;                               // guarded by mutex_
  std::vector<std::optional<absl::Status>> results_;  // guarded by mutex_

  std::vector<std::thread> readers_;
};

}  // namespace tessera::models
