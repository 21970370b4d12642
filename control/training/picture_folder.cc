#include "control/training/picture_folder.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"

namespace tessera::control {
namespace {

namespace fs = std::filesystem;

bool IsPicture(const fs::path& path) {
  const std::string extension = absl::AsciiStrToLower(path.extension().string());
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

std::string WithoutExtension(const std::string& path) {
  return fs::path(path).lexically_normal().replace_extension().string();
}

// Returns the only one of these names. INVALID_ARGUMENT if there are two.
absl::StatusOr<std::string> OnlyOne(const std::string& folder, const std::vector<std::string>& names) {
  if (names.size() == 1) return (fs::path(folder) / names.front()).string();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": ", names[0], " and ", names[1], " are for one image; remove one of them"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PicturesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path name = entry->path().filename();
    if (IsPicture(name) && !absl::StartsWith(name.string(), ".")) names.push_back(name.string());
  }
  if (error) {
    return absl::Status(error == std::errc::no_such_file_or_directory ? absl::StatusCode::kNotFound
                                                                      : absl::StatusCode::kFailedPrecondition,
                        absl::StrCat("is ", base::QuotedValue(folder), ", which cannot be read: ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

ControlFolders::ControlFolders(absl::Span<const std::string> folders, const std::vector<std::string>& images)
    : folders_(folders) {
  for (const std::string& image : images) images_.insert(WithoutExtension(image));
}

absl::StatusOr<const ControlFolders::Names*> ControlFolders::NamesIn(const std::string& folder) {
  const auto [entry, is_new] = names_.try_emplace(folder);
  if (!is_new) return &entry->second;
  const absl::StatusOr<std::vector<std::string>> pictures = PicturesIn(folder);
  // An image in a folder within its folder may have no such folder here.
  if (!pictures.ok() && !absl::IsNotFound(pictures.status())) {
    return absl::Status(pictures.status().code(), absl::StrCat(folder, " ", pictures.status().message()));
  }
  if (!pictures.ok()) return &entry->second;
  for (const std::string& name : *pictures) entry->second[fs::path(name).stem().string()].push_back(name);
  return &entry->second;
}

absl::StatusOr<std::vector<std::string>> ControlFolders::PicturesOf(const std::string& image) {
  const fs::path path = fs::path(image).lexically_normal();
  const std::string stem = path.stem().string();
  std::vector<std::string> all;
  for (const std::string& root : folders_) {
    const std::string folder = path.has_parent_path() ? (fs::path(root) / path.parent_path()).string() : root;
    ASSIGN_OR_RETURN(const Names* const names, NamesIn(folder));
    if (const auto exact = names->find(stem); exact != names->end()) {
      ASSIGN_OR_RETURN(std::string only, OnlyOne(folder, exact->second));
      all.push_back(std::move(only));
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> numbered, NumberedPictures(folder, *names, image));
    if (numbered.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(folder, ": there is no picture for it; give ", stem, ".png or ",
                                                     stem, ".jpg, or several as ", stem, "_0.png, ", stem, "_1.png"));
    }
    all.insert(all.end(), numbered.begin(), numbered.end());
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> ControlFolders::NumberedPictures(const std::string& folder, const Names& names,
                                                                          const std::string& image) const {
  const fs::path path = fs::path(image).lexically_normal();
  const std::string prefix = path.stem().string() + "_";
  std::map<int64_t, std::vector<std::string>> numbered;
  for (auto name = names.lower_bound(prefix); name != names.end(); ++name) {
    absl::string_view digits = name->first;
    if (!absl::ConsumePrefix(&digits, prefix)) break;
    int64_t number = 0;
    if (!std::ranges::all_of(digits, absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &number)) continue;
    // It is the picture of another image.
    if (images_.contains((path.parent_path() / name->first).string())) continue;
    std::vector<std::string>& of_number = numbered[number];
    of_number.insert(of_number.end(), name->second.begin(), name->second.end());
  }
  std::vector<std::string> pictures;
  for (const auto& [number, of_number] : numbered) {
    ASSIGN_OR_RETURN(std::string only, OnlyOne(folder, of_number));
    pictures.push_back(std::move(only));
  }
  return pictures;
}

}  // namespace tessera::control
