#include "models/weights/read_ahead.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "kernels/quantized/quant_rows.h"
#include "models/weights/stored_types.h"

namespace tessera::models {
namespace {

bool IsFinite(const WeightLocation& location, int64_t row_bytes, std::span<const std::byte> bytes) {
  if (location.quantization != nullptr) {
    const kernels::QuantType type = location.quantization->type;
    if (type == kernels::QuantType::kNibble) return true;  // its scales and table are checked when they are read
    const kernels::QuantBlock block = kernels::BlockOf(type);
    const int64_t rows = row_bytes == 0 ? 0 : static_cast<int64_t>(bytes.size()) / row_bytes;
    const std::vector<float> ones(kernels::HasOwnScales(type) ? 0 : static_cast<size_t>(rows), 1.0f);
    return kernels::AllFinite({.type = type,
                               .bytes = bytes.data(),
                               .row_bytes = row_bytes,
                               .columns = row_bytes / block.bytes * block.values,
                               .scales = ones.empty() ? nullptr : ones.data()},
                              rows);
  }
  return AreFinite(location.tensor.type, bytes);
}

absl::Status CheckFinite(const FileRead& read, std::span<const std::byte> bytes) {
  if (IsFinite(*read.location, read.row_bytes, bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the weight ", base::Quote(read.location->tensor.name),
                                                 " holds a number that is not finite; the file is damaged or was made "
                                                 "from a model that had diverged"));
}

}  // namespace

int64_t FileRead::kept_bytes() const {
  if (kept.empty()) return rows * row_bytes;
  int64_t of_row = 0;
  for (const Run& run : kept) of_row += run.count;
  return rows * of_row;
}

ReadAhead::ReadAhead(const WeightFolder& folder, std::span<const ReadTurn> turns,
                     std::span<const std::span<std::byte>> buffers)
    : folder_(folder), turns_(turns), buffers_(buffers), results_(turns.size()) {
  for (size_t i = 0; i < std::min(buffers.size(), turns.size()); ++i) {
    readers_.emplace_back([this] { ReadTurns(); });
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

absl::Status ReadAhead::Await(size_t turn) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return results_[turn].has_value(); });
  return *results_[turn];
}

void ReadAhead::ReleaseBefore(size_t turn) {
  {
    const std::lock_guard lock(mutex_);
    released_ = std::max(released_, turn);
  }
  changed_.notify_all();
}

void ReadAhead::ReadTurns() {
  std::vector<std::byte> whole_rows;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      const bool has_buffer = next_ < released_ + buffers_.size() || base::Planted("buffer_read_into_in_use");
      return ending_ || next_ == turns_.size() || has_buffer;
    });
    if (ending_ || next_ == turns_.size()) return;
    const size_t turn = next_++;
    lock.unlock();
    absl::Status status;
    for (const FileRead& read : turns_[turn]) {
      status = Read(read, buffers_[turn % buffers_.size()], whole_rows);
      if (!status.ok()) break;
    }
    lock.lock();
    results_[turn] = std::move(status);
    changed_.notify_all();
  }
}

absl::Status ReadAhead::Read(const FileRead& read, std::span<std::byte> buffer,
                             std::vector<std::byte>& whole_rows) const {
  std::byte* to = read.to != nullptr ? read.to : buffer.data() + read.buffered_at;
  const auto bytes = static_cast<size_t>(read.rows * read.row_bytes);
  const auto offset = static_cast<uint64_t>(read.offset);
  if (read.kept.empty()) {
    RETURN_IF_ERROR(folder_.Read(*read.location, offset, {to, bytes}));
    return CheckFinite(read, {to, bytes});
  }
  whole_rows.resize(std::max(whole_rows.size(), bytes));
  RETURN_IF_ERROR(folder_.Read(*read.location, offset, {whole_rows.data(), bytes}));
  RETURN_IF_ERROR(CheckFinite(read, {whole_rows.data(), bytes}));
  for (int64_t row = 0; row < read.rows; ++row) {
    for (const FileRead::Run& run : read.kept) {
      std::memcpy(to, whole_rows.data() + row * read.row_bytes + run.begin, static_cast<size_t>(run.count));
      to += run.count;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::models
