#include "tests/support/sentencepiece_library.h"

// This header declares absl::string_view differently, so it cannot be included together with Abseil's headers.
#include <sentencepiece_processor.h>

namespace tessera {

std::vector<std::vector<int64_t>> EncodeWithLibrary(const std::string& model_path,
                                                    const std::vector<std::string>& texts) {
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::vector<int64_t>> encoded;
  if (!processor.Load(model_path).ok()) return encoded;
  for (const std::string& text : texts) {
    std::vector<int64_t>& ids = encoded.emplace_back();
    const auto proto = processor.EncodeAsImmutableProto(text);  // owns the memory of the pieces
    for (const auto& piece : proto.pieces()) ids.push_back(piece.id());
  }
  return encoded;
}

}  // namespace tessera
