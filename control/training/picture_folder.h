// Lists the pictures of a folder, and finds in other folders those that go with each of its images: the pictures at
// which a model looks while it is trained to make the image.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::control {

// Returns the names of the PNG and JPEG files directly in a folder, rising, without hidden ones. NOT_FOUND or
// FAILED_PRECONDITION, in words that follow the name of a key, if it cannot be read.
absl::StatusOr<std::vector<std::string>> PicturesIn(const std::string& folder);

// Used by one thread. The folders are read once.
class ControlFolders final {
 public:
  // `folders` as in TrainDataset::control_path, and outliving this object. `images` are the paths of all images,
  // relative to their folder.
  ControlFolders(absl::Span<const std::string> folders, const std::vector<std::string>& images);

  // Returns the pictures of an image, those of the first folder first. In each folder they are the picture of the
  // image's name with any extension or, if there is none, all pictures with that name, "_" and a number, in the order
  // of the numbers, as musubi-tuner names them. INVALID_ARGUMENT, which begins with the path of the folder, if a folder
  // has none, or two for one place.
  absl::StatusOr<std::vector<std::string>> PicturesOf(const std::string& image);

 private:
  // The pictures of a folder: their names by the names without extension.
  using Names = std::map<std::string, std::vector<std::string>>;

  absl::StatusOr<const Names*> NamesIn(const std::string& folder);
  absl::StatusOr<std::vector<std::string>> NumberedPictures(const std::string& folder, const Names& names,
                                                            const std::string& image) const;

  const absl::Span<const std::string> folders_;
  std::set<std::string> images_;  // relative paths without extension
  std::map<std::string, Names> names_;
};

}  // namespace tessera::control
