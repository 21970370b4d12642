// Tests what is stored of the pictures that keys upload, with the real decoder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/api/service_error.h"
#include "server/pictures/decode_picture.h"
#include "server/pictures/uploaded_pictures.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string Upload(const std::string& name) { return Bytes("tests/pictures/uploads/" + name); }

class UploadsOfKeysTest : public ::testing::Test {
 protected:
  UploadsOfKeysTest() { Open({}); }

  void Open(ContentStoreOptions store, PictureDecoderOptions decoder = {.executable = PICTURE_DECODER}) {
    store.folder = folder_ / "contents";
    contents_ = *ContentStore::Open(store);
    uploads_ = std::make_unique<UploadedPictures>(
        UploadedPicturesOptions{.folder = store.folder,
                                .decoder = std::move(decoder),
                                .now = [this] { return now_; },
                                .log = [this](const base::LogLine& line) { log_.push_back(line.text); }},
        *contents_);
  }
  // The names of the files in the folder of a key.
  std::vector<std::string> FilesOf(const ContentOwner& owner) const {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_ / "contents/" + owner.folder(), error)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  const TestFolder folder_;
  const ContentOwner key_ = ContentOwner::Key("first"), other_ = ContentOwner::Key("second");
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  std::vector<std::string> log_;
  std::unique_ptr<ContentStore> contents_;
  std::unique_ptr<UploadedPictures> uploads_;
};

TEST_F(UploadsOfKeysTest, StoresUprightPixelsWithoutAnythingElse) {
  const absl::StatusOr<StoredPicture> stored = uploads_->Put(key_, Upload("orientation_6.jpg"));
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_FALSE(stored->mask.has_value());
  const std::string png = Bytes(folder_ / "contents/" + key_.folder() + "/" + stored->picture.digest);
  EXPECT_EQ(uploads_->ReadPicture(key_, stored->picture).value(), png);
  const auto decoded = DecodePicture(png, {}), sent = DecodePicture(Upload("orientation_6.jpg"), {});
  ASSERT_TRUE(decoded.ok() && sent.ok());
  EXPECT_EQ(decoded->frames.bytes, sent->frames.bytes);
  EXPECT_EQ(stored->picture.width, sent->frames.width);
  for (const char* chunk : {"eXIf", "tEXt", "iTXt", "zTXt", "iCCP", "tIME"}) {
    EXPECT_EQ(png.find(chunk), std::string::npos) << chunk;
  }
}

TEST_F(UploadsOfKeysTest, AnAlphaChannelIsAlsoAMask) {
  const absl::StatusOr<StoredPicture> stored = uploads_->Put(key_, Upload("rgba.png"));
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_TRUE(stored->mask.has_value());
  const auto mask = DecodePicture(uploads_->ReadPicture(key_, *stored->mask).value(), {});
  const auto sent = DecodePicture(Upload("rgba.png"), {});
  ASSERT_TRUE(mask.ok() && sent.ok());
  for (size_t pixel = 0; pixel < mask->frames.bytes.size() / 3; ++pixel) {
    ASSERT_EQ(mask->frames.bytes[3 * pixel], 255 - sent->frames.bytes[4 * pixel + 3]) << pixel;
  }
  EXPECT_THAT(FilesOf(key_), SizeIs(2));
  EXPECT_TRUE(uploads_->Put(key_, Upload("rgba.png")).ok());
  EXPECT_THAT(FilesOf(key_), SizeIs(2)) << "the same picture is stored once";
}

TEST_F(UploadsOfKeysTest, NothingIsLeftOfWhatIsNoPicture) {
  for (const std::string& file : {std::string("no picture"), Upload("rgb.png").substr(0, 60), std::string()}) {
    const absl::Status refused = uploads_->PutFile(key_, file).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_THAT(FilesOf(key_), IsEmpty());
}

TEST_F(UploadsOfKeysTest, AKeyCannotStoreMoreThanItsBoundAndAnotherIsNotDisturbed) {
  Open({.most_bytes_of_key = ContentStore::kLeastBytes});
  ASSERT_TRUE(uploads_->Put(key_, Upload("rgb.png")).ok());
  const absl::Status full = uploads_->Put(key_, Upload("grey.png")).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(ErrorCode(full), "picture_storage_full");
  EXPECT_THAT(std::string(full.message()), HasSubstr("of this API key"));
  EXPECT_TRUE(uploads_->Put(other_, Upload("grey.png")).ok());
}

TEST_F(UploadsOfKeysTest, AHandleLivesUntilItExpiresAndHoldsItsPicture) {
  Open({.retention = absl::ZeroDuration()});
  const absl::StatusOr<UploadedFile> file = uploads_->PutFile(key_, Upload("rgba.png"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes, Upload("rgba.png").size());
  EXPECT_EQ(file->expires, now_ + absl::Hours(24));
  EXPECT_EQ(uploads_->FindFile(key_, file->id)->picture, file->picture);
  EXPECT_FALSE(uploads_->FindFile(other_, file->id).ok());
  EXPECT_THAT(uploads_->ListFiles(other_), IsEmpty());

  Open({.retention = absl::ZeroDuration()});  // as after a restart
  EXPECT_THAT(uploads_->ListFiles(key_), SizeIs(1));
  const std::set<std::string> needed = uploads_->NeededContents();
  EXPECT_EQ(needed, (std::set<std::string>{file->picture.picture.digest, file->picture.mask->digest}));
  contents_->RemoveUnused(needed);
  EXPECT_TRUE(uploads_->FindFile(key_, file->id).ok());

  now_ += absl::Hours(25);
  EXPECT_EQ(uploads_->FindFile(key_, file->id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(uploads_->ListFiles(key_), IsEmpty());
  EXPECT_THAT(uploads_->NeededContents(), IsEmpty());
  contents_->RemoveUnused({});
  EXPECT_THAT(FilesOf(key_), IsEmpty());
}

TEST_F(UploadsOfKeysTest, NamesOfFilesAreNeverPaths) {
  folder_.Write("contents/" + key_.folder() + "/other", "x");
  for (const char* id : {"", "other", "../other", "file-", "file-../../../../../../../../etc/passwd",
                         "file-0123456789ABCDEF0123456789ABCDEF", "file-0123456789abcdef0123456789abcdef0"}) {
    EXPECT_EQ(uploads_->FindFile(key_, id).status().code(), absl::StatusCode::kNotFound) << id;
    EXPECT_EQ(uploads_->DeleteFile(key_, id).code(), absl::StatusCode::kNotFound) << id;
  }
  // A damaged record is no file.
  const std::string id = "file-0123456789abcdef0123456789abcdef";
  folder_.Write("contents/" + key_.folder() + "/" + id, "garbage");
  EXPECT_EQ(uploads_->FindFile(key_, id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(uploads_->NeededContents(), IsEmpty());
  EXPECT_THAT(FilesOf(key_), ElementsAre("other"));
}

TEST_F(UploadsOfKeysTest, WithoutConfinementNothingIsDecoded) {
  // With this limit of a file's size the program claims to be confined and is not (planted_decoder_main.cc).
  Open({}, {.executable = PLANTED_PICTURE_DECODER, .limits = {.file_bytes = 4242}});
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = uploads_->Put(key_, Upload("rgb.png")).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("confine"));
  }
  EXPECT_THAT(log_, ElementsAre(HasSubstr("pictures are refused")));
  EXPECT_THAT(FilesOf(key_), IsEmpty());
}

}  // namespace
}  // namespace tessera::server
