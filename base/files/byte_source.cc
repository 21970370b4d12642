#include "base/files/byte_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/macros/status_macros.h"

namespace tessera::base {
namespace {

class TextBytes final : public ByteSource {
 public:
  explicit TextBytes(std::string text) : text_(std::move(text)) {}

  uint64_t size() const override { return text_.size(); }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    return text_.substr(std::min<uint64_t>(offset, text_.size()), count);
  }

 private:
  const std::string text_;
};

class Parts final : public ByteSource {
 public:
  explicit Parts(std::vector<SharedBytes> parts) : parts_(std::move(parts)) {
    for (const SharedBytes& part : parts_) size_ += part->size();
  }

  uint64_t size() const override { return size_; }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    std::string bytes;
    for (const SharedBytes& part : parts_) {
      if (bytes.size() == count) break;
      if (offset >= part->size()) {
        offset -= part->size();
        continue;
      }
      ASSIGN_OR_RETURN(std::string more, part->Read(offset, count - bytes.size()));
      offset = 0;
      bytes = bytes.empty() ? std::move(more) : bytes + more;
    }
    return bytes;
  }

 private:
  const std::vector<SharedBytes> parts_;
  uint64_t size_ = 0;
};

class Base64 final : public ByteSource {
 public:
  explicit Base64(SharedBytes bytes) : bytes_(std::move(bytes)) {}

  uint64_t size() const override { return (bytes_->size() + 2) / 3 * 4; }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    const uint64_t begin = std::min(offset, size());
    const uint64_t end = begin + std::min<uint64_t>(count, size() - begin);
    // Four characters encode three bytes.
    const uint64_t first = begin / 4, last = (end + 3) / 4;
    ASSIGN_OR_RETURN(const std::string bytes, bytes_->Read(first * 3, static_cast<size_t>((last - first) * 3)));
    return absl::Base64Escape(bytes).substr(begin - first * 4, end - begin);
  }

 private:
  const SharedBytes bytes_;
};

}  // namespace

SharedBytes BytesOf(std::string text) { return std::make_shared<TextBytes>(std::move(text)); }
SharedBytes Joined(std::vector<SharedBytes> parts) { return std::make_shared<Parts>(std::move(parts)); }
SharedBytes InBase64(SharedBytes bytes) { return std::make_shared<Base64>(std::move(bytes)); }

absl::StatusOr<std::string> ReadAll(const ByteSource& bytes) {
  return bytes.Read(0, static_cast<size_t>(bytes.size()));
}

}  // namespace tessera::base
