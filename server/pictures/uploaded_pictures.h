// UploadedPictures stores the pictures that callers send: each is decoded in a confined process and kept, without its
// metadata, as a content of the caller's key (server/content/content_store.h).
//
// An uploaded file is a random handle: the file CONTENTS/OWNER/file-HEX next to the key's contents, which names the
// contents and lives as long as they must. Nothing else connects a handle with a picture, so neither handles nor
// digests of one key mean anything to another. Several servers may share the folders. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/api/stored_picture.h"
#include "server/content/content_store.h"
#include "server/pictures/picture_decoder.h"

namespace tessera::server {

struct UploadedPicturesOptions {
  std::string folder;  // ContentStoreOptions::folder
  PictureDecoderOptions decoder;
  absl::Duration file_retention = absl::Hours(24);  // of a handle, from the upload
  std::function<absl::Time()> now = absl::Now;
  base::EventLog log;  // may be null
};

inline constexpr size_t kMaxUploadedFiles = 1000;  // of one key

class UploadedPictures final {
 public:
  // `contents` outlives it. The decoder is started with the first picture.
  UploadedPictures(UploadedPicturesOptions options, ContentStore& contents);

  // The errors of ImageService::PutPicture.
  absl::StatusOr<StoredPicture> Put(const ContentOwner& owner, absl::string_view file);

  // The stored file. NOT_FOUND.
  absl::StatusOr<std::string> ReadPicture(const ContentOwner& owner, const control::PictureUse& picture) const;

  // Also RESOURCE_EXHAUSTED for more than kMaxUploadedFiles. Returns after the handle is durable.
  absl::StatusOr<UploadedFile> PutFile(const ContentOwner& owner, absl::string_view file);
  // NOT_FOUND for a handle that this owner does not have or that has expired.
  absl::StatusOr<UploadedFile> FindFile(const ContentOwner& owner, absl::string_view id);
  std::vector<UploadedFile> ListFiles(const ContentOwner& owner) const;  // newest first
  absl::Status DeleteFile(const ContentOwner& owner, absl::string_view id);

  // Removes expired handles and returns the digests that the others name.
  std::set<std::string> NeededContents();

  // Fills in where the workers find the pictures of a job. DATA_LOSS if one is not there any more.
  absl::Status Locate(const ContentOwner& owner, std::vector<control::PictureUse>& pictures) const;

 private:
  absl::StatusOr<PictureDecoder*> Decoder();
  absl::StatusOr<control::PictureUse> Store(const ContentOwner& owner, const control::Frames& frame);
  std::string FolderOf(const ContentOwner& owner) const;
  absl::StatusOr<UploadedFile> Read(const std::string& folder, absl::string_view id) const;

  const UploadedPicturesOptions options_;
  ContentStore& contents_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<PictureDecoder> decoder_;
  absl::Status not_confined_;
};

}  // namespace tessera::server
