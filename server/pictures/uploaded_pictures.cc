#include "server/pictures/uploaded_pictures.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fields/binary_fields.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/api/service_error.h"
#include "server/pictures/picture_pixels.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kHandle = "file-";
constexpr size_t kHandleDigits = 32;
constexpr size_t kMaxRecordBytes = 4096;
constexpr uint64_t kMaxStoredBytes = uint64_t{1} << 28;  // of one picture, as it is stored

// What the file of a handle holds.
struct FileRecord {
  uint64_t bytes = 0;
  int64_t created_ms = 0;
  control::PictureUse picture;
  std::vector<control::PictureUse> mask;
  bool is_animated = false;
};

constexpr auto FieldsOf(const FileRecord*) {
  using base::Field;
  using F = FileRecord;
  return std::tuple(Field("bytes", &F::bytes), Field("created_ms", &F::created_ms), Field("picture", &F::picture),
                    Field("mask", &F::mask, base::List<base::Nested>{.most = 1}),
                    Field("is_animated", &F::is_animated));
}

bool IsHandle(absl::string_view id) {
  if (!absl::ConsumePrefix(&id, kHandle) || id.size() != kHandleDigits) return false;
  return std::ranges::all_of(id, [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

absl::Status NoSuchFile() {
  return absl::NotFoundError(" names no uploaded file of this API key; it may have expired: upload it again");
}

// For callers: the picture is at fault, or the service is for the moment.
absl::Status DecodeError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted:
      return absl::InvalidArgumentError(absl::StrCat(": ", status.message()));
    default:
      return absl::UnavailableError(": no process is free to decode the picture; try again");
  }
}

absl::Status StoreError(const absl::Status& status) {
  if (!status.GetPayload(kContentBound).has_value()) {
    const bool is_full = absl::IsResourceExhausted(status);
    return WithErrorCode(absl::UnavailableError(absl::StrCat(": the picture cannot be stored now",
                                                             is_full ? ": the disk is full" : "; try again")),
                         is_full ? "storage_full" : "storage_unavailable");
  }
  return WithErrorCode(absl::ResourceExhaustedError(absl::StrCat(": ", status.message())), "picture_storage_full");
}

}  // namespace

UploadedPictures::UploadedPictures(UploadedPicturesOptions options, ContentStore& contents)
    : options_(std::move(options)), contents_(contents) {}

absl::StatusOr<PictureDecoder*> UploadedPictures::Decoder() {
  const std::lock_guard lock(mutex_);
  if (decoder_ == nullptr && not_confined_.ok()) {
    absl::StatusOr<std::unique_ptr<PictureDecoder>> started = PictureDecoder::Start(options_.decoder);
    if (started.ok()) {
      decoder_ = *std::move(started);
    } else {
      if (options_.log != nullptr) {
        options_.log({base::LogLevel::kError,
                      absl::StrCat("pictures are refused: the decoder cannot be used: ", started.status().message())});
      }
      if (!absl::IsFailedPrecondition(started.status())) return DecodeError(started.status());
      not_confined_ =
          absl::UnimplementedError(": this system does not let the server confine the program that decodes pictures");
    }
  }
  RETURN_IF_ERROR(not_confined_);
  return decoder_.get();
}

absl::StatusOr<control::PictureUse> UploadedPictures::Store(const ContentOwner& owner, const control::Frames& frame) {
  ASSIGN_OR_RETURN(const std::string png, EncodeStoredPicture(frame));
  absl::StatusOr<ContentWriter> writer = contents_.Begin(owner, kMaxStoredBytes);
  if (!writer.ok()) return StoreError(writer.status());
  if (const absl::Status written = writer->Append(png); !written.ok()) return StoreError(written);
  const absl::StatusOr<Content> content = writer->Commit();
  if (!content.ok()) return StoreError(content.status());
  return control::PictureUse{.digest = content->digest, .width = frame.width, .height = frame.height};
}

absl::StatusOr<StoredPicture> UploadedPictures::Put(const ContentOwner& owner, absl::string_view file) {
  ASSIGN_OR_RETURN(PictureDecoder * decoder, Decoder());
  absl::StatusOr<DecodedPicture> decoded = decoder->Decode({file.data(), file.size()});
  if (!decoded.ok()) return DecodeError(decoded.status());
  StoredPicture stored = {.is_animated = decoded->facts.animated};
  if (decoded->frames.channels == 4) {
    ASSIGN_OR_RETURN(stored.mask, Store(owner, MaskOfAlpha(decoded->frames)));
  }
  ASSIGN_OR_RETURN(stored.picture, Store(owner, OnWhite(std::move(decoded->frames))));
  return stored;
}

absl::StatusOr<std::string> UploadedPictures::ReadPicture(const ContentOwner& owner,
                                                          const control::PictureUse& picture) const {
  const absl::StatusOr<Content> content = contents_.Find(owner, picture.digest);
  if (!content.ok()) return absl::NotFoundError("the picture is not stored any more");
  return base::ReadWholeFile(content->path, "the picture", kMaxStoredBytes);
}

std::string UploadedPictures::FolderOf(const ContentOwner& owner) const {
  return absl::StrCat(options_.folder, "/", owner.folder());
}

absl::StatusOr<UploadedFile> UploadedPictures::PutFile(const ContentOwner& owner, absl::string_view file) {
  if (ListFiles(owner).size() >= kMaxUploadedFiles) {
    return WithErrorCode(absl::ResourceExhaustedError(absl::StrCat(": this API key has ", kMaxUploadedFiles,
                                                                   " uploaded files; delete some of them")),
                         "picture_storage_full");
  }
  ASSIGN_OR_RETURN(StoredPicture stored, Put(owner, file));
  FileRecord record = {.bytes = file.size(),
                       .created_ms = absl::ToUnixMillis(options_.now()),
                       .picture = stored.picture,
                       .is_animated = stored.is_animated};
  if (stored.mask.has_value()) record.mask = {*stored.mask};
  const std::string id = base::RandomId(kHandle);
  const absl::Status written = base::WriteFileAtomically(absl::StrCat(FolderOf(owner), "/", id),
                                                         base::EncodeFields(record), {.owner_only = true});
  if (!written.ok()) return StoreError(written);
  const absl::Time created = absl::FromUnixMillis(record.created_ms);
  return UploadedFile{.id = id,
                      .bytes = record.bytes,
                      .created = created,
                      .expires = created + options_.file_retention,
                      .picture = std::move(stored)};
}

absl::StatusOr<UploadedFile> UploadedPictures::Read(const std::string& folder, absl::string_view id) const {
  if (!IsHandle(id)) return NoSuchFile();
  const std::optional<std::string> bytes =
      base::ReadSmallFile(absl::StrCat(folder, "/", std::string(id)), kMaxRecordBytes);
  FileRecord record;
  if (!bytes.has_value() || !base::DecodeFields(*bytes, record).ok()) return NoSuchFile();
  UploadedFile file = {.id = std::string(id),
                       .bytes = record.bytes,
                       .created = absl::FromUnixMillis(record.created_ms),
                       .picture = {.picture = std::move(record.picture), .is_animated = record.is_animated}};
  file.expires = file.created + options_.file_retention;
  if (!record.mask.empty()) file.picture.mask = std::move(record.mask.front());
  return file;
}

absl::StatusOr<UploadedFile> UploadedPictures::FindFile(const ContentOwner& owner, absl::string_view id) {
  ASSIGN_OR_RETURN(UploadedFile file, Read(FolderOf(owner), id));
  if (file.expires <= options_.now()) return NoSuchFile();
  // Their retention begins again, so that a job that names them now finds them.
  absl::Status found = contents_.Find(owner, file.picture.picture.digest).status();
  if (file.picture.mask.has_value()) found.Update(contents_.Find(owner, file.picture.mask->digest).status());
  if (!found.ok()) return NoSuchFile();
  return file;
}

std::vector<UploadedFile> UploadedPictures::ListFiles(const ContentOwner& owner) const {
  std::vector<UploadedFile> files;
  std::error_code error;
  const std::string folder = FolderOf(owner);
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    absl::StatusOr<UploadedFile> file = Read(folder, entry->path().filename().string());
    if (file.ok() && file->expires > options_.now()) files.push_back(*std::move(file));
  }
  std::ranges::sort(files, [](const UploadedFile& a, const UploadedFile& b) {
    return std::tie(a.created, a.id) > std::tie(b.created, b.id);
  });
  return files;
}

absl::Status UploadedPictures::DeleteFile(const ContentOwner& owner, absl::string_view id) {
  RETURN_IF_ERROR(FindFile(owner, id).status());
  const std::string path = absl::StrCat(FolderOf(owner), "/", std::string(id));
  if (::unlink(path.c_str()) == 0) return absl::OkStatus();
  return errno == ENOENT ? NoSuchFile() : absl::UnavailableError(": the file cannot be deleted now; try again");
}

std::set<std::string> UploadedPictures::NeededContents() {
  std::set<std::string> needed;
  std::error_code error, inner;
  for (fs::directory_iterator owner(options_.folder, error), end; !error && owner != end; owner.increment(error)) {
    const std::string folder = owner->path().string();
    for (fs::directory_iterator entry(folder, inner), last; !inner && entry != last; entry.increment(inner)) {
      const std::string name = entry->path().filename().string();
      if (!absl::StartsWith(name, kHandle)) continue;
      const absl::StatusOr<UploadedFile> file = Read(folder, name);
      if (!file.ok() || file->expires <= options_.now()) {
        ::unlink(entry->path().c_str());
        continue;
      }
      needed.insert(file->picture.picture.digest);
      if (file->picture.mask.has_value()) needed.insert(file->picture.mask->digest);
    }
    inner.clear();
  }
  return needed;
}

absl::Status UploadedPictures::Locate(const ContentOwner& owner, std::vector<control::PictureUse>& pictures) const {
  for (control::PictureUse& picture : pictures) {
    if (!picture.file.empty()) continue;  // a program's own jobs name their files
    const absl::StatusOr<Content> content = contents_.Find(owner, picture.digest);
    if (!content.ok()) return absl::DataLossError("a picture of the job is not stored any more");
    picture.file = content->path;
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
