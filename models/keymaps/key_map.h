// KeyMap translates the tensor names of one component's single file, as its authors or llama.cpp write them, into the
// parameters of the diffusers layout, and back for export. The names are data: key_tables.h has a table per family.
// LibTorch-free. Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/keymaps/key_tables.h"

namespace tessera::models {

// What a tensor of a file is made of.
struct MappedKey {
  KeyOperation operation = KeyOperation::kSame;
  std::vector<std::string> parameters = {};  // full names of diffusers, for example "x_embedder.weight"
  int64_t heads = 0;                         // kRotaryPairs: number of heads whose rows are reordered
  int64_t part = 0, parts = 1;               // kPart, kFrame: which of how many equal parts of the parameter

  bool operator==(const MappedKey&) const = default;
};

// Replaces a named placeholder of a table, for example {last}, by a text in the file's name and one in the parameters'.
struct KeyNumber {
  std::string placeholder;  // with its braces
  std::string file, parameters;
};

std::vector<KeyNumber> LastBlock(int64_t blocks);  // {last} of kSd3Keys; blocks are at least 1
std::vector<KeyNumber> ZImageStacks();             // {stack} of kZImageKeys

class KeyMap {
 public:
  // A map by which every name stands for itself, except those that match `ignored`.
  explicit KeyMap(std::vector<std::string_view> ignored = {});
  // Expands the rows' named placeholders by `numbers`; a row with several is expanded by all combinations, and a row
  // whose placeholder has no number is left out. `heads` and `kv_heads` are for rows of kRotaryPairs.
  KeyMap(const KeyTable& table, const std::vector<KeyNumber>& numbers, int64_t heads = 0, int64_t kv_heads = 0);

  // Translates a name that has no prefix of its component. Any bytes are valid as a name. Null if it is unknown or
  // ignored.
  std::optional<MappedKey> Map(std::string_view name) const;
  // Whether the tensor has no effect, for example "logit_scale".
  bool Ignores(std::string_view name) const;
  // Returns the name in the file of the tensor that holds the parameter; Map of that name contains the parameter. If a
  // parameter is held by several tensors (kPart), it is the first. Null if the file holds no such parameter.
  std::optional<std::string> NameOf(std::string_view parameter) const;

 private:
  struct Row {
    std::string file;                     // {} is a number
    std::vector<std::string> parameters;  // with the numbers of `file` in the same order
    KeyUnit unit = KeyUnit::kModule;
    MappedKey key;  // without parameters
  };

  bool is_identity_ = false;
  std::vector<Row> rows_;  // the first that matches applies
  std::vector<std::string_view> ignored_;
};

// A row of a table without named placeholders.
struct ExpandedKeyRow {
  std::string file, parameters;  // {} is a number
  KeyRow row;                    // as in the table
};

// Expands the rows in their order, as the constructor of KeyMap does.
std::vector<ExpandedKeyRow> ExpandKeyRows(std::span<const KeyRow> rows, const std::vector<KeyNumber>& numbers);

// Whose names a file has.
enum class NameForm {
  kDiffusers,  // those of the diffusers layout itself
  kOriginal,   // of the model's authors, and of ComfyUI
  kLlamaCpp,   // of llama.cpp: text encoders in GGUF
};

// Returns the map of a component of that class (as in model_index.json) and config.json. Null if the form is not known
// for the class. InvalidArgument if the configuration lacks a number that the names depend on.
absl::StatusOr<std::optional<KeyMap>> KeyMapOf(const std::string& class_name, const base::Json& config, NameForm form);

}  // namespace tessera::models
