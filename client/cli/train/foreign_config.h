// ForeignConfig holds the settings of another program's configuration file and records which of them were read, so that
// none is dropped without a note.
//
// A setting is a value that is no mapping and no list of mappings. Its name is its path: "config.process[0].train.lr".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::client {

// Parses YAML, JSON or TOML, as the end of the file's name says, into one tree. Returns InvalidArgument, with the path
// and the line, for text that is not in that format or is too large.
absl::StatusOr<base::Json> ParseForeign(const std::string& text, const std::string& path);

class ForeignConfig {
 public:
  // `prefix` begins the name of every setting. With `drops_sections`, a setting within a mapping has its last name
  // alone, as for programs to which sections mean nothing.
  explicit ForeignConfig(const base::Json& root, const std::string& prefix = "", bool drops_sections = false);

  // Whether there is a setting with this name, or one whose name continues it after a point or a bracket.
  bool Has(std::string_view name) const;
  // The number of elements name[0], name[1], …
  size_t Count(std::string_view name) const;

  // Return a setting's value; nothing if it is absent, off (null, "", an empty list), or of another type, which is
  // noted. Numbers and flags may be texts.
  std::optional<std::string> Text(const std::string& name);
  std::optional<double> Number(const std::string& name);
  std::optional<int64_t> Integer(const std::string& name);
  std::optional<bool> Flag(const std::string& name);
  // One value is a list of one.
  std::vector<std::string> Texts(const std::string& name);
  std::vector<double> Numbers(const std::string& name);

  // Counts a setting as read because it has no effect or means what this program does anyway.
  void Take(const std::string& name);
  // Notes what becomes of a setting that is present and on.
  void Note(const std::string& name, const std::string& what);
  // Adds a note that is about no single setting.
  void Remark(const std::string& text) { notes_.push_back(text); }

  // Returns all notes, with one for each setting that was not read. Those that are off are in one note together.
  std::vector<std::string> Finish();

 private:
  struct Setting {
    base::Json value;
    bool taken = false;
  };

  void Add(const base::Json& value, const std::string& name);
  // Marks the setting as read. Null if it is absent or off.
  const base::Json* Find(const std::string& name);
  void NoteType(const std::string& name, const char* expected);

  const bool drops_sections_;
  std::vector<std::string> order_;
  std::map<std::string, Setting, std::less<>> settings_;
  std::vector<std::string> notes_;
};

}  // namespace tessera::client
