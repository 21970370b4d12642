// Brings the pictures of a request into the service's store. Errors name the field as the API does: `images` or `mask`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/image_service.h"
#include "server/api/request_values.h"
#include "server/api/stored_picture.h"

namespace tessera::server {

class UrlFetcher;

struct GivenPictures {
  std::vector<PictureSource> images, mask;

  // For validation before the pictures are read.
  RequestPictures Placeholders() const;
};

// Moves the pictures out of a request. INVALID_ARGUMENT for too many, and for one that is not given in exactly one way.
absl::StatusOr<GivenPictures> TakePictures(ImageRequest& request);

// Reads, decodes and stores the pictures. `fetcher` reads URLs of other hosts; null: they are refused. Returns as
// ImageService::PutPicture and FindFile do, and INVALID_ARGUMENT for a mask without an alpha channel or of
// another size than the first picture. Adds sentences for the caller to `warnings`.
absl::StatusOr<RequestPictures> StorePictures(ImageService& service, UrlFetcher* fetcher, const Caller& caller,
                                              GivenPictures given, std::vector<std::string>& warnings);

}  // namespace tessera::server
