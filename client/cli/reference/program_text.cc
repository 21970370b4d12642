#include "client/cli/reference/program_text.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace tessera::client {

ValueChoices ChoicesOf(const std::string& value) {
  static const std::set<std::string> kFiles = {"FILE", "IMAGE", "IN", "PATTERN"};
  static const std::set<std::string> kFolders = {"DIR", "FOLDER", "FOLDERS", "MODEL"};
  ValueChoices choices;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, '|', absl::SkipEmpty()))) {
    choices.files |= kFiles.count(part) > 0;
    choices.folders |= kFolders.count(part) > 0;
    if (std::none_of(part.begin(), part.end(), absl::ascii_isupper)) choices.words.push_back(part);
  }
  choices.folders &= !choices.files;  // completion of files includes folders
  return choices;
}

}  // namespace tessera::client
