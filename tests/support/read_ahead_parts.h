// ReadAheadParts holds a weight file with one tensor of bytes, divided into turns of 1001 bytes, for tests of reading
// ahead.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/read_ahead.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera {

class ReadAheadParts {
 public:
  ReadAheadParts(size_t turns, size_t buffers) : bytes_(buffers, std::string(kTurn, '\0')) {
    for (size_t i = 0; i < turns * kTurn; ++i) all_ += static_cast<char>(i * 7 + i / 251);
    const std::string header =
        absl::StrCat("{\"w\":{\"dtype\":\"U8\",\"shape\":[", all_.size(), "],\"data_offsets\":[0,", all_.size(), "]}}");
    file_ = test_folder_.Write("model.safetensors", SafetensorsBytes(header, all_));
    folder_.emplace(*models::WeightFolder::Open(test_folder_.path(), "part"));
    for (size_t turn = 0; turn < turns; ++turn) {
      turns_.push_back({{.location = &location(), .offset = static_cast<int64_t>(turn * kTurn), .row_bytes = kTurn}});
    }
    for (std::string& buffer : bytes_) buffers_.push_back(std::as_writable_bytes(std::span(buffer)));
  }

  const models::WeightFolder& folder() const { return *folder_; }
  const models::WeightFolder::Location& location() const { return folder_->tensors().at("w"); }
  std::span<const models::ReadTurn> turns() const { return turns_; }
  std::span<const std::span<std::byte>> buffers() const { return buffers_; }
  const std::string& file() const { return file_; }
  const std::string& all() const { return all_; }

  std::string Expected(size_t turn) const { return all_.substr(turn * kTurn, kTurn); }
  const std::string& InBufferOf(size_t turn) const { return bytes_[turn % bytes_.size()]; }

 private:
  static constexpr int64_t kTurn = 1001;

  TestFolder test_folder_;
  std::string file_, all_;
  std::optional<models::WeightFolder> folder_;
  std::vector<models::ReadTurn> turns_;
  std::vector<std::string> bytes_;
  std::vector<std::span<std::byte>> buffers_;
};

}  // namespace tessera
