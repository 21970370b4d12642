// A picture that a caller has sent, as the service has stored it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "control/parameters/picture_use.h"

namespace tessera::server {

struct StoredPicture {
  control::PictureUse picture;  // without transparency: on white
  // What its alpha channel means as a mask: white where it is transparent. Absent: it has no alpha channel.
  std::optional<control::PictureUse> mask;
  bool is_animated = false;  // only the first frame is stored

  bool operator==(const StoredPicture&) const = default;
};

// The pictures of a request. Before they are stored, a size of 0 x 0 stands for each.
struct RequestPictures {
  std::vector<control::PictureUse> images;
  std::vector<control::PictureUse> mask;  // at most one
};

// A picture that was uploaded to be named in requests.
struct UploadedFile {
  std::string id;      // random; only the key that uploaded it can use it
  uint64_t bytes = 0;  // of the file as it was sent
  absl::Time created;
  absl::Time expires;
  StoredPicture picture;
};

}  // namespace tessera::server
