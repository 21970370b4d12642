// TokenizerFolder reads the files of a tokenizer's folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::models {

// Errors name the files relative to the model, e.g. tokenizer/vocab.json.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::string& path);

  const std::string& component() const { return component_; }  // e.g. tokenizer_2

  absl::StatusOr<std::string> Read(const std::string& file) const;
  // Returns nothing if there is no such file.
  absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& file) const;

 private:
  std::string path_;
  std::string component_;
};

// Returns the lines without their ends, which are "\n" or "\r\n"; the last line may lack its end.
std::vector<std::string_view> SplitLines(std::string_view text);

}  // namespace tessera::models
