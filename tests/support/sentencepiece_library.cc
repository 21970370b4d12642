#include "tests/support/sentencepiece_library.h"

// Declares absl::string_view in its own way, so no header of Abseil can stand beside it.
#include <sentencepiece_processor.h>

namespace tessera {

std::vector<std::vector<int64_t>> EncodeWithLibrary(const std::string& model_path,
                                                    const std::vector<std::string>& texts) {
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::vector<int64_t>> encoded;
  if (!processor.Load(model_path).ok()) return encoded;
  for (const std::string& text : texts) {
    std::vector<int64_t>& ids = encoded.emplace_back();
    const auto proto = processor.EncodeAsImmutableProto(text);  // owns what the pieces point to
    for (const auto& piece : proto.pieces()) ids.push_back(piece.id());
  }
  return encoded;
}

}  // namespace tessera
