#include "models/tokenizers/piece_model.h"

#include <algorithm>

#include "base/macros/status_macros.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {

absl::StatusOr<std::unique_ptr<PieceModel>> PieceModel::Read(const base::Json* json, const std::string& name) {
  ASSIGN_OR_RETURN(std::vector<TokenizerPart> parts, ReadParts(json, name, ""));
  if (parts.size() != 1) return absl::InvalidArgumentError(name + ": there is no model");
  TokenizerPart& part = parts.front();
  absl::StatusOr<std::unique_ptr<PieceModel>> model = UnknownPart(part, {"BPE", "Unigram", "WordPiece"});
  if (part.type == "BPE") model = ReadBpeModel(part);
  if (part.type == "Unigram") model = ReadUnigramModel(part);
  if (part.type == "WordPiece") model = ReadWordPieceModel(part);
  if (!model.ok()) return model;
  RETURN_IF_ERROR(part.Finish());
  return model;
}

int64_t PieceModel::size() const {
  int64_t size = 0;
  for (const auto& [text, id] : vocabulary()) size = std::max(size, int64_t{id} + 1);
  return size;
}

}  // namespace tessera::models
