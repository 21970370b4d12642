#include "server/api/image_service.h"

#include "server/api/stored_picture.h"

namespace tessera::server {
namespace {

absl::Status NoPictures() { return absl::UnimplementedError(": this server reads no pictures"); }

}  // namespace

absl::StatusOr<StoredPicture> ImageService::PutPicture(const Caller&, absl::string_view) { return NoPictures(); }
absl::StatusOr<std::string> ImageService::ReadPicture(const Caller&, const control::PictureUse&) {
  return NoPictures();
}
absl::StatusOr<UploadedFile> ImageService::PutFile(const Caller&, absl::string_view) { return NoPictures(); }
absl::StatusOr<UploadedFile> ImageService::FindFile(const Caller&, absl::string_view) { return NoPictures(); }
absl::StatusOr<std::vector<UploadedFile>> ImageService::ListFiles(const Caller&) { return NoPictures(); }
absl::Status ImageService::DeleteFile(const Caller&, absl::string_view) { return NoPictures(); }

}  // namespace tessera::server
