// Makes GGUF files by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// The bytes of a GGUF file: its metadata and its table of tensors are added in order; Bytes adds the data.
class GgufBytes {
 public:
  explicit GgufBytes(uint32_t version = 3) : version_(version) {}

  // Types and values as they are in the file: 4 is a 32-bit whole number, 8 a text (ggml's specification of GGUF).
  GgufBytes& Metadata(const std::string& key, uint32_t type, const std::string& value) {
    metadata_ += Text(key) + Number(type, 4) + value;
    ++metadata_count_;
    return *this;
  }
  GgufBytes& Text(const std::string& key, const std::string& value) { return Metadata(key, 8, Text(value)); }
  GgufBytes& U32(const std::string& key, uint32_t value) { return Metadata(key, 4, Number(value, 4)); }

  // `sizes` in the order of the file: a row's length first.
  GgufBytes& Tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    tensors_ += Text(name) + Number(sizes.size(), 4);
    for (const uint64_t size : sizes) tensors_ += Number(size, 8);
    tensors_ += Number(type, 4) + Number(offset, 8);
    ++tensor_count_;
    return *this;
  }

  std::string Header() const {
    return "GGUF" + Number(version_, 4) + Number(tensor_count_, 8) + Number(metadata_count_, 8) + metadata_ + tensors_;
  }
  std::string Bytes(const std::string& data, size_t alignment = 32) const {
    std::string bytes = Header();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes + data;
  }

  static std::string Number(uint64_t value, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  static std::string Text(const std::string& value) { return Number(value.size(), 8) + value; }

 private:
  const uint32_t version_;
  std::string metadata_, tensors_;
  uint64_t metadata_count_ = 0, tensor_count_ = 0;
};

}  // namespace tessera
