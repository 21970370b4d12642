#include "client/cli/batch/item_pictures.h"

#include <boost/json.hpp>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/macros/status_macros.h"
#include "control/parameters/picture_use.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr size_t kMaxPathBytes = 4096;

absl::StatusOr<std::string> PathOf(const char* field, const json::value& value, const std::string& folder) {
  if (!value.is_string()) {
    return base::ErrorOfField(
        field, absl::StrCat(" is ", server::QuotedValue(json::serialize(value)), "; it must be the path of a file"));
  }
  const std::string path(value.get_string());
  const bool is_url = path.find("://") != path.npos || absl::StartsWith(path, "data:");
  if (path.empty() || path.size() > kMaxPathBytes || path.find('\0') != path.npos || is_url) {
    return base::ErrorOfField(field, absl::StrCat(" is ", server::QuotedValue(path),
                                                  "; it must be the path of a file, relative to the input's folder"));
  }
  return (fs::path(folder) / path).string();
}

absl::Status CheckFile(const char* field, const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return absl::OkStatus();
  return base::ErrorOfField(field, absl::StrCat(" names ", server::QuotedValue(path), ", which is not a file"));
}

}  // namespace

absl::StatusOr<PictureOptions> TakePictures(json::object& fields, const std::string& folder) {
  PictureOptions pictures;
  if (const json::value* image = fields.if_contains("image")) {
    const bool is_list = image->is_array();
    const std::vector<json::value> paths =
        is_list ? std::vector<json::value>(image->get_array().begin(), image->get_array().end())
                : std::vector<json::value>{*image};
    if (paths.empty() || paths.size() > control::kMaxPictures) {
      return base::ErrorOfField(
          "image", absl::StrCat(" names ", paths.size(), " files; valid values are 1 to ", control::kMaxPictures));
    }
    for (const json::value& path : paths) {
      ASSIGN_OR_RETURN(std::string found, PathOf("image", path, folder));
      pictures.images.push_back(std::move(found));
    }
  }
  if (const json::value* mask = fields.if_contains("mask")) {
    ASSIGN_OR_RETURN(pictures.mask, PathOf("mask", *mask, folder));
  }
  if (const json::value* strength = fields.if_contains("strength")) {
    if (!strength->is_number()) {
      return base::ErrorOfField(
          "strength", absl::StrCat(" is ", server::QuotedValue(json::serialize(*strength)), "; it must be a number"));
    }
    pictures.strength = json::serialize(*strength);
  }
  for (const char* field : kPictureFields) fields.erase(field);
  return pictures;
}

absl::Status CheckPictureFiles(const PictureOptions& pictures) {
  for (const std::string& path : pictures.images) RETURN_IF_ERROR(CheckFile("image", path));
  return pictures.mask.empty() ? absl::OkStatus() : CheckFile("mask", pictures.mask);
}

}  // namespace tessera::client
