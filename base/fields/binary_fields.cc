#include "base/fields/binary_fields.h"

#include "base/text/utf8.h"

namespace tessera::base {

void BinaryWriter::PutText(const std::string& text, const Text& valid) {
  if (valid.is_path) return PutBytes(text);
  PutBytes(ReplaceInvalidUtf8(text));
}

bool BinaryReader::GetBytes(std::string_view& bytes) {
  uint64_t size;
  if (!GetRaw(size) || size > left_.size()) return false;
  bytes = left_.substr(0, size);
  left_.remove_prefix(size);
  return true;
}

}  // namespace tessera::base
