// TextNormalizer is the normalizer of a tokenizer.json: a sequence of steps that each rewrite the text. Immutable; Run
// may be called from any number of threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/tokenizers/bert_text.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

class TextNormalizer {
 public:
  TextNormalizer() = default;  // changes nothing

  // `json` may be null. Returns InvalidArgument, naming the part, for a type or an option that is not supported and for
  // invalid fields.
  static absl::StatusOr<TextNormalizer> Read(const base::Json* json, const std::string& name);

  // Returns InvalidArgument if the text grows beyond a bound that is linear in its length.
  absl::Status Run(std::vector<TracedChar>& text) const;

  // The settings of the BERT normalizer among the steps, if there is one.
  const std::optional<BertCleaning>& bert_cleaning() const { return bert_cleaning_; }

 private:
  using Step = std::function<absl::Status(std::vector<TracedChar>&)>;
  std::vector<Step> steps_;
  std::optional<BertCleaning> bert_cleaning_;
};

}  // namespace tessera::models
