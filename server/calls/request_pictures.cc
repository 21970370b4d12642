#include "server/calls/request_pictures.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/api/request_limits.h"
#include "server/fetch/url_fetcher.h"

namespace tessera::server {
namespace {

constexpr absl::string_view kDataUrl = "data:";

// An error about a URL has a field's name already.
absl::Status About(const char* field, const absl::Status& status) {
  return ErrorField(status).empty() ? WithFieldName(field, status) : status;
}

// Returns the bytes of a data URL in base64 (RFC 2397). The media type is not believed.
absl::StatusOr<std::string> ReadDataUrl(absl::string_view url) {
  const size_t comma = url.find(',');
  if (comma == absl::string_view::npos || !absl::EndsWithIgnoreCase(url.substr(0, comma), ";base64")) {
    return absl::InvalidArgumentError(
        " is a data URL without ';base64,'; it must be as 'data:image/png;base64,' and the file in base64");
  }
  std::string bytes;
  if (!absl::Base64Unescape(url.substr(comma + 1), &bytes)) {
    return absl::InvalidArgumentError(" is a data URL whose base64 is not valid");
  }
  return bytes;
}

absl::StatusOr<StoredPicture> Store(ImageService& service, UrlFetcher* fetcher, const Caller& caller,
                                    const PictureSource& source) {
  if (!source.file_id.empty()) {
    absl::StatusOr<UploadedFile> file = service.FindFile(caller, source.file_id);
    if (absl::IsNotFound(file.status())) return absl::InvalidArgumentError(file.status().message());
    RETURN_IF_ERROR(file.status());
    return std::move(file->picture);
  }
  if (!source.data.empty()) return service.PutPicture(caller, source.data);
  if (absl::StartsWithIgnoreCase(source.image_url, kDataUrl)) {
    ASSIGN_OR_RETURN(const std::string bytes, ReadDataUrl(source.image_url));
    return service.PutPicture(caller, bytes);
  }
  if (fetcher != nullptr) {
    ASSIGN_OR_RETURN(const std::string bytes, fetcher->Fetch(source.image_url));
    return service.PutPicture(caller, bytes);
  }
  return absl::InvalidArgumentError(
      " is a URL; this server fetches no pictures, so send the file itself as a data URL, or upload it with "
      "POST /v1/files and name its id");
}

absl::Status CheckSources(const std::string& field, const std::vector<PictureSource>& sources, size_t most) {
  if (sources.size() > most) {
    return FieldError(field, absl::StrCat(" are ", sources.size(), "; at most ", most, " are valid"));
  }
  for (const PictureSource& source : sources) {
    if (const absl::Status one = CheckRules(source); !one.ok())
      return FieldError(field, absl::StrCat(": ", one.message()));
    if (source.data.size() > kMaxPictureBytes || source.image_url.size() > kMaxPictureUrlBytes) {
      return FieldError(field, absl::StrCat(" has a file of more than ", kMaxPictureBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

void WarnOf(const std::string& field, const StoredPicture& stored, std::vector<std::string>& warnings) {
  if (stored.is_animated) warnings.push_back(absl::StrCat(field, ": the picture is animated; its first frame is used"));
}

}  // namespace

RequestPictures GivenPictures::Placeholders() const {
  return {.images = std::vector<control::PictureUse>(images.size()),
          .mask = std::vector<control::PictureUse>(mask.size())};
}

absl::StatusOr<GivenPictures> TakePictures(ImageRequest& request) {
  RETURN_IF_ERROR(CheckSources("images", request.images, control::kMaxPictures));
  RETURN_IF_ERROR(CheckSources("mask", request.mask, 1));
  GivenPictures given = {.images = std::move(request.images), .mask = std::move(request.mask)};
  request.images.clear();
  request.mask.clear();
  return given;
}

absl::StatusOr<RequestPictures> StorePictures(ImageService& service, UrlFetcher* fetcher, const Caller& caller,
                                              GivenPictures given, std::vector<std::string>& warnings) {
  RequestPictures pictures;
  for (PictureSource& source : given.images) {
    const absl::StatusOr<StoredPicture> stored = Store(service, fetcher, caller, source);
    if (!stored.ok()) return About("images", stored.status());
    WarnOf("images", *stored, warnings);
    pictures.images.push_back(stored->picture);
    source = {};  // frees its bytes
  }
  for (const PictureSource& source : given.mask) {
    const absl::StatusOr<StoredPicture> stored = Store(service, fetcher, caller, source);
    if (!stored.ok()) return About("mask", stored.status());
    WarnOf("mask", *stored, warnings);
    if (!stored->mask.has_value()) {
      return FieldError("mask", " has no alpha channel; it must be transparent where the picture is to change");
    }
    pictures.mask.push_back(*stored->mask);
  }
  if (!pictures.mask.empty() && !pictures.images.empty()) {
    const control::PictureUse &mask = pictures.mask.front(), &image = pictures.images.front();
    if (mask.width != image.width || mask.height != image.height) {
      return FieldError("mask", absl::StrCat(" has ", mask.width, "x", mask.height, " pixels and the image has ",
                                             image.width, "x", image.height, "; both must have one size"));
    }
  }
  return pictures;
}

}  // namespace tessera::server
