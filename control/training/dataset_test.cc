#include "control/training/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/resample.h"

namespace tessera::control {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

// A folder with copies of the pictures in tests/pictures: source.png is 40x30 and the turned JPEGs are 24x16 and 16x24.
class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              absl::StrCat("dataset-", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Copy(const std::string& picture, const std::string& name) {
    fs::create_directories((folder_ / name).parent_path());
    fs::copy_file(fs::path("tests/pictures") / picture, folder_ / name, fs::copy_options::overwrite_existing);
    return (folder_ / name).string();
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  TrainDataset Folder() const { return {.folder_path = folder_.string(), .resolution = {64}}; }

  static absl::StatusOr<TrainingSet> Scan(const std::vector<TrainDataset>& datasets, const std::string& word = "") {
    return ScanDatasets({.datasets = datasets, .trigger_word = word, .default_resolution = 32, .rule = {}});
  }
  std::string ErrorOf(const TrainDataset& dataset) const { return std::string(Scan({dataset}).status().message()); }

  fs::path folder_;
};

std::vector<std::string> CaptionsOf(const TrainingSet& set) {
  std::vector<std::string> captions;
  for (const TrainingSample& sample : set.samples) captions.push_back(sample.caption);
  return captions;
}

TEST_F(DatasetTest, CaptionsAreNextToTheImagesInOrderOfTheirNames) {
  Copy("source.png", "b.png");
  Copy("orientation_6.jpg", "a.JPG");
  Copy("source.png", ".hidden.png");
  Write("a.txt", " a tall thing\n");
  Write("b.txt", "a wide thing");
  Write("notes.md", "no picture");
  const absl::StatusOr<TrainingSet> set = Scan({Folder()});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(CaptionsOf(*set), ElementsAre("a tall thing", "a wide thing"));
  EXPECT_EQ(set->samples[0].size, (PictureSize{16, 24}));
  EXPECT_EQ(set->samples[1].size, (PictureSize{40, 30}));
  std::ifstream picture(folder_ / "b.png", std::ios::binary);
  base::Sha256 digest;
  digest.Update(std::string(std::istreambuf_iterator<char>(picture), {}));
  EXPECT_EQ(DigestText(set->samples[1].digest), digest.Finish());
  EXPECT_THAT(set->buckets, ElementsAre(Bucket{48, 80}, Bucket{80, 48}));
  EXPECT_EQ(set->samples[0].bucket, 0);
  EXPECT_EQ(set->samples[1].bucket, 1);
  EXPECT_THAT(set->Warnings(), ElementsAre("2 images of 2 smaller than the training size and enlarged"));
}

TEST_F(DatasetTest, MetadataGoesBeforeCaptionFilesAndNamesTheOrder) {
  Copy("source.png", "images/x.png");
  Copy("source.png", "y.png");
  Copy("source.png", "z.png");
  Write("y.txt", "not this");
  Write("metadata.jsonl",
        "{\"file_name\": \"y.png\", \"text\": \"the y\", \"other\": 3}\n\n{\"file_name\": \"images/x.png\", \"text\": "
        "\"\"}\n");
  const absl::StatusOr<TrainingSet> set = Scan({Folder()});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(CaptionsOf(*set), ElementsAre("the y", ""));
  EXPECT_THAT(set->without_caption, ElementsAre((folder_ / "images/x.png").string()));
  EXPECT_THAT(set->unlisted, ElementsAre((folder_ / "z.png").string()));
}

TEST_F(DatasetTest, ALineOfMetadataThatIsWrongIsNamed) {
  Copy("source.png", "a.png");
  const std::string name = absl::StrCat("datasets[0]: ", (folder_ / "metadata.jsonl").string(), " line 2: ");
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {"{\"file_name\": \"a.png\"}", "field \"text\" must be the caption of the image"},
           {"{\"text\": \"a\"}", "field \"file_name\" must be the name of an image"},
           {"{\"file_name\": \"../a.png\", \"text\": \"a\"}", "it must be the name of a file within the folder"},
           {"{\"file_name\": \"/a.png\", \"text\": \"a\"}", "it must be the name of a file within the folder"}}) {
    Write("metadata.jsonl", absl::StrCat("{\"file_name\": \"a.png\", \"text\": \"a\"}\n", line, "\n"));
    EXPECT_THAT(ErrorOf(Folder()), AllOf(HasSubstr(name), HasSubstr(problem))) << line;
  }
  Write("metadata.jsonl", "{\"file_name\": \"a.png\"");
  EXPECT_THAT(ErrorOf(Folder()), HasSubstr("line 1"));
}

TEST_F(DatasetTest, ImagesThatCannotBeUsedAreRefusedWithTheirNumberAndNames) {
  Copy("source.png", "good.png");
  Write("empty.png", "");
  Write("text.jpg", "no picture");
  EXPECT_THAT(ErrorOf(Folder()),
              AllOf(HasSubstr("2 images cannot be used: "), HasSubstr("empty.png: the file is neither"),
                    HasSubstr("text.jpg: the file is neither"), HasSubstr("or set bad_images: skip")));
}

TEST_F(DatasetTest, OrTheyAreLeftOutNamedAndCounted) {
  const std::string good = Copy("source.png", "good.png");
  std::ifstream source(good, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(source), {}};
  Write("cut.png", bytes.substr(0, bytes.size() / 2));
  TrainDataset dataset = Folder();
  dataset.bad_images = BadImages::kSkip;
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->samples.size(), 1u);
  EXPECT_THAT(set->left_out, ElementsAre(LeftOutImage{(folder_ / "cut.png").string(), "the file is cut short"}));
  EXPECT_THAT(set->Warnings()[0], AllOf(HasSubstr("1 image is left out: "), HasSubstr("cut.png")));
  // A missing image can only be listed in metadata.jsonl.
  Write("metadata.jsonl",
        "{\"file_name\": \"gone.png\", \"text\": \"a\"}\n{\"file_name\": \"good.png\", \"text\": \"b\"}\n");
  const absl::StatusOr<TrainingSet> listed = Scan({dataset});
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->left_out.size(), 1u);
  EXPECT_THAT(listed->left_out[0].path, HasSubstr("gone.png"));
  fs::remove(folder_ / "good.png");
  EXPECT_THAT(ErrorOf(dataset), HasSubstr("no image can be used: "));
}

TEST_F(DatasetTest, SoAreThoseThatCannotBeReadAndThoseBeyondTheLimits) {
  std::ifstream source(Copy("orientation_1.jpg", "huge.jpg"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(source), {}};
  const size_t frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  bytes[frame + 7] = 0x7F;  // of the width
  Write("huge.jpg", bytes);
  fs::create_directory(folder_ / "folder.png");
  Copy("source.png", "good.png");
  TrainDataset dataset = Folder();
  EXPECT_THAT(ErrorOf(dataset), HasSubstr("2 images cannot be used: "));
  dataset.bad_images = BadImages::kSkip;
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->samples.size(), 1u);
  EXPECT_THAT(set->Warnings()[0],
              AllOf(HasSubstr("2 images are left out: "), HasSubstr("folder.png ("),
                    HasSubstr("huge.jpg (the image has 32"), HasSubstr("valid are sides of at most")));
}

// The files' structure is complete.
TEST_F(DatasetTest, SoAreThoseWhosePixelsCannotBeDecoded) {
  const std::string good = Copy("source.png", "good.png");
  const absl::StatusOr<std::string> jpeg = ReadPictureFile("tests/pictures/orientation_1.jpg");
  ASSERT_TRUE(jpeg.ok());
  const size_t scan = jpeg->find("\xFF\xDA");
  ASSERT_NE(scan, std::string::npos);
  // The scan contains only ones, a code that no table defines.
  std::string bytes = jpeg->substr(0, scan + 2 + 12);
  for (int i = 0; i < 64; ++i) bytes.append("\xFF\x00", 2);
  Write("scan.jpg", bytes + "\xFF\xD9");
  // The header claims one row more than the pixels have.
  const absl::StatusOr<std::string> png = ReadPictureFile(good);
  ASSERT_TRUE(png.ok());
  std::string taller = *png;
  ++taller[23];
  const auto sum = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(taller.data() + 12), 17));
  for (size_t i = 0; i < 4; ++i) taller[29 + i] = static_cast<char>(sum >> (24 - 8 * i));
  Write("taller.png", taller);
  TrainDataset dataset = Folder();
  EXPECT_THAT(ErrorOf(dataset), AllOf(HasSubstr("2 images cannot be used: "), HasSubstr("scan.jpg: "),
                                      HasSubstr("taller.png: the image cannot be decoded: not enough pixels")));
  dataset.bad_images = BadImages::kSkip;
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->samples.size(), 1u);
  EXPECT_THAT(set->Warnings()[0],
              AllOf(HasSubstr("2 images are left out: "), HasSubstr("scan.jpg ("), HasSubstr("taller.png (")));
}

TEST_F(DatasetTest, SoAreThoseWhoseCaptionsCannotBeUsed) {
  for (const char* name : {"good", "latin", "long", "nul"}) Copy("source.png", absl::StrCat(name, ".png"));
  Write("good.txt", "a house");
  Write("latin.txt", "caf\xE9");
  Write("long.txt", std::string(70000, 'a'));
  Write("nul.txt", std::string("a\0b", 3));
  TrainDataset dataset = Folder();
  EXPECT_THAT(ErrorOf(dataset),
              AllOf(HasSubstr("3 images cannot be used: "), HasSubstr("latin.txt: the caption is not UTF-8"),
                    HasSubstr("long.txt has 70000 bytes; at most 65536 are valid"),
                    HasSubstr("nul.txt: the caption has a NUL character")));
  dataset.bad_images = BadImages::kSkip;
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(CaptionsOf(*set), ElementsAre("a house"));
  EXPECT_THAT(set->Warnings()[0], AllOf(HasSubstr("3 images are left out: "), HasSubstr("latin.png (")));
  Write("metadata.jsonl",
        "{\"file_name\": \"latin.png\", \"text\": 7}\n{\"file_name\": \"long.png\"}\n"
        "{\"file_name\": \"good.png\", \"text\": \"b\"}\n");
  const absl::StatusOr<TrainingSet> listed = Scan({dataset});
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(CaptionsOf(*listed), ElementsAre("b"));
  ASSERT_EQ(listed->left_out.size(), 2u);
  EXPECT_THAT(listed->left_out[0].reason, HasSubstr("metadata.jsonl line 1: field \"text\" must be the caption"));
}

TEST_F(DatasetTest, LinesOfMetadataThatNameNoImageHaveThePolicyOfImages) {
  Copy("source.png", "good.png");
  Write("metadata.jsonl",
        "{\"file_name\": \"good.png\", \"text\": \"a\"}\n{\"file_name\": \"good.png\", \n[1]\n"
        "{\"text\": \"b\"}\n{\"file_name\": \"../good.png\", \"text\": \"b\"}\n\xFF\n");
  EXPECT_THAT(ErrorOf(Folder()),
              AllOf(HasSubstr("5 images cannot be used: datasets[0]: "), HasSubstr("metadata.jsonl line 2"),
                    HasSubstr("metadata.jsonl line 3"), HasSubstr("and 2 more"), HasSubstr("or set bad_images: skip")));
  TrainDataset dataset = Folder();
  dataset.bad_images = BadImages::kSkip;
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(CaptionsOf(*set), ElementsAre("a"));
  ASSERT_EQ(set->left_out.size(), 5u);
  EXPECT_EQ(set->left_out[0].path, (folder_ / "metadata.jsonl").string() + " line 2");
  EXPECT_THAT(set->left_out[2].reason, HasSubstr("field \"file_name\" must be the name of an image"));
  EXPECT_THAT(set->Warnings(), Contains(AllOf(HasSubstr("5 images are left out: "), HasSubstr("line 2 ("))));
  // The digest shows when processes have read different lines.
  const TrainDataset datasets[] = {dataset};
  const DatasetOptions options = {.datasets = datasets, .default_resolution = 64};
  const std::string before = DatasetListing::Create(options)->Digest();
  Write("metadata.jsonl", "{\"file_name\": \"good.png\", \"text\": \"a\"}\n");
  EXPECT_NE(DatasetListing::Create(options)->Digest(), before);
  // If no line is left, the error quotes the first line's reason.
  Write("metadata.jsonl", "no JSON\n");
  EXPECT_THAT(ErrorOf(dataset), AllOf(HasSubstr("no image can be used: "), HasSubstr("metadata.jsonl line 1")));
}

// Paths contain no NUL, so ranks separate paths with it when they exchange messages about them.
TEST_F(DatasetTest, ANulInTheNameOfAnImageIsRefusedWithItsLine) {
  Copy("source.png", "good.png");
  Write("metadata.jsonl",
        "{\"file_name\": \"good.png\", \"text\": \"a\"}\n{\"file_name\": \"good.png\\u0000.png\", \"text\": \"b\"}\n");
  TrainDataset dataset = Folder();
  dataset.bad_images = BadImages::kSkip;
  const TrainDataset datasets[] = {dataset};
  const DatasetOptions options = {.datasets = datasets, .default_resolution = 64};
  const absl::StatusOr<DatasetListing> listing = DatasetListing::Create(options);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_THAT(listing->paths(), ElementsAre((folder_ / "good.png").string()));
  const absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->left_out.size(), 1u);
  EXPECT_THAT(set->left_out[0].path, HasSubstr("metadata.jsonl line 2"));
  EXPECT_THAT(set->left_out[0].reason, HasSubstr("field \"file_name\" is 'good.png?.png'; it must not have a NUL"));
}

TEST_F(DatasetTest, AByteOrderMarkIsNoPartOfACaption) {
  Copy("source.png", "a.png");
  Copy("source.png", "b.png");
  Write("a.txt", "\xEF\xBB\xBF a house\n");
  Write("b.txt", "\xEF\xBB\xBF");
  const absl::StatusOr<TrainingSet> from_files = Scan({Folder()});
  ASSERT_TRUE(from_files.ok()) << from_files.status();
  EXPECT_THAT(CaptionsOf(*from_files), ElementsAre("a house", ""));
  EXPECT_THAT(from_files->without_caption, ElementsAre((folder_ / "b.png").string()));
  Write("metadata.jsonl", "\xEF\xBB\xBF{\"file_name\": \"a.png\", \"text\": \"\\ufeffa\"}\r\n");
  const absl::StatusOr<TrainingSet> listed = Scan({Folder()});
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(CaptionsOf(*listed), ElementsAre("a"));
}

TEST_F(DatasetTest, CaptionsInFilesThatAreNotReadAreRefusedByName) {
  Copy("source.png", "a.png");
  Copy("source.png", "b.png");
  Write("a.json", "{\"caption\": \"a house\"}");
  EXPECT_THAT(ErrorOf(Folder()), AllOf(HasSubstr("1 image cannot be used: "), HasSubstr("a.json: captions in JSON"),
                                       HasSubstr("write the caption to "), HasSubstr("a.txt")));
  TrainDataset dataset = Folder();
  dataset.caption_ext = ".JSON";
  EXPECT_THAT(ErrorOf(dataset), HasSubstr("datasets[0]: caption_ext is '.JSON'; captions are read from text files"));
  Write("a.txt", "");
  EXPECT_TRUE(Scan({Folder()}).ok());
  for (const char* name : {"metadata.csv", "metadata.json", "metadata.parquet"}) {
    Write(name, "file_name,text\na.png,a house\n");
    EXPECT_THAT(ErrorOf(Folder()),
                AllOf(HasSubstr(name), HasSubstr(" is not read; write its captions to metadata.jsonl")));
    fs::remove(folder_ / name);
  }
  Write("metadata.csv", "file_name,text\na.png,a house\n");
  Write("metadata.jsonl", "{\"file_name\": \"a.png\", \"text\": \"a\"}\n");
  const absl::StatusOr<TrainingSet> both = Scan({Folder()});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(CaptionsOf(*both), ElementsAre("a"));
  EXPECT_THAT(both->unread, ElementsAre((folder_ / "metadata.csv").string()));
  EXPECT_THAT(both->Warnings(), Contains(AllOf(HasSubstr("1 file is not read, since captions come from metadata.jsonl"),
                                               HasSubstr("metadata.csv"))));
}

TEST_F(DatasetTest, AFolderThatIsMissingOrEmptyIsNamed) {
  EXPECT_THAT(ErrorOf({.folder_path = "/nowhere"}),
              HasSubstr("datasets[0].folder_path is '/nowhere', which cannot be read: No such file"));
  EXPECT_EQ(Scan({{.folder_path = "/nowhere"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(Folder()), HasSubstr("which has no PNG or JPEG image and no metadata.jsonl"));
}

TEST_F(DatasetTest, AResolutionThatTheModelDoesNotTakeIsRefused) {
  Copy("source.png", "a.png");
  TrainDataset dataset = Folder();
  dataset.resolution = {64, 100};
  EXPECT_THAT(ErrorOf(dataset), HasSubstr("datasets[0].resolution is 100; valid values for this model are multiples"));
}

TEST_F(DatasetTest, EachResolutionIsASampleAndTheModelsIsTheDefault) {
  Copy("source.png", "a.png");
  TrainDataset dataset = Folder();
  dataset.resolution = {};
  absl::StatusOr<TrainingSet> set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(set->buckets, ElementsAre(Bucket{32, 32}));
  dataset.resolution = {32, 64};
  set = Scan({dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(set->buckets, ElementsAre(Bucket{32, 32}, Bucket{80, 48}));
  EXPECT_EQ(set->samples.size(), 2u);
}

TEST_F(DatasetTest, RepeatsEqualTheFolderListedAsOften) {
  Copy("source.png", "a.png");
  Copy("orientation_1.jpg", "b.jpg");
  TrainDataset twice = Folder();
  twice.num_repeats = 2;
  TrainDataset spelt_otherwise = Folder();
  spelt_otherwise.folder_path += "/./";
  const absl::StatusOr<TrainingSet> repeated = Scan({twice}), listed = Scan({Folder(), spelt_otherwise});
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(repeated->samples, listed->samples);
  EXPECT_EQ(repeated->samples[0].repeats, 2);
  EXPECT_THAT(listed->unlisted, IsEmpty());
}

TEST_F(DatasetTest, TheTriggerWordGoesIntoCaptionsButNotIntoThoseOfRegularisation) {
  Copy("source.png", "a.png");
  Write("a.txt", "a [trigger] toy");
  Copy("source.png", "b.png");
  Write("b.txt", "a toy");
  TrainDataset regularisation = Folder();
  regularisation.is_reg = true;
  const absl::StatusOr<TrainingSet> set = Scan({Folder(), regularisation}, "sks");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(CaptionsOf(*set), ElementsAre("a sks toy", "sks a toy", "a  toy", "a toy"));
}

TEST(TriggerWordTest, ReplacesItsPlaceOrStandsInFront) {
  EXPECT_EQ(WithTriggerWord("[trigger] and [trigger]", "x", true), "x and x");
  EXPECT_EQ(WithTriggerWord("a cat", "x", true), "x a cat");
  EXPECT_EQ(WithTriggerWord("a cat", "x", false), "a cat");
  EXPECT_EQ(WithTriggerWord("", "x", true), "x");
  EXPECT_EQ(WithTriggerWord("[trigger] a cat", "", true), "a cat");
}

TEST_F(DatasetTest, ASetThatLeavesPicturesOutLaterIsThatOfAScanWithoutThem) {
  Copy("source.png", "a.png");
  Copy("orientation_6.jpg", "b.jpg");  // the only portrait picture
  Copy("transparent.png", "c.png");
  Copy("larger_64x48.png", "d.png");
  Write("a.txt", "a house");
  Write("d.txt", "a [trigger]");
  TrainDataset dataset = Folder();
  dataset.resolution = {32, 64};
  dataset.bad_images = BadImages::kSkip;
  TrainDataset regularisation = dataset;
  regularisation.is_reg = true;
  regularisation.num_repeats = 3;
  absl::StatusOr<TrainingSet> set = Scan({dataset, regularisation, dataset}, "sks");
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->samples.size(), 16u);
  const size_t buckets = set->buckets.size();
  const std::string c = (folder_ / "c.png").string(), b = (folder_ / "b.jpg").string();
  const absl::StatusOr<std::vector<int64_t>> removed = set->LeaveOut({{c, "it is away"}, {b, "it is cut short"}});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, ElementsAre(2, 3, 4, 5, 10, 11, 12, 13));
  fs::remove(b);
  fs::remove(c);
  const absl::StatusOr<TrainingSet> without = Scan({dataset, regularisation, dataset}, "sks");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_LT(without->buckets.size(), buckets);
  EXPECT_EQ(set->buckets, without->buckets);
  EXPECT_EQ(set->samples, without->samples);
  EXPECT_EQ(set->Warnings(), without->Warnings());
  EXPECT_EQ(LeftOutText({{c, "it is away"}, {b, "it is cut short"}}),
            absl::StrCat("2 images are left out: ", c, " (it is away), ", b, " (it is cut short)"));
}

TEST_F(DatasetTest, ASetLeavesNoPictureOutLaterThatAnyFolderRefusesNorTheLastOne) {
  const std::string a = Copy("source.png", "a.png"), b = Copy("orientation_1.jpg", "b.jpg");
  TrainDataset skips = Folder();
  skips.bad_images = BadImages::kSkip;
  TrainDataset refuses = Folder(), refuses_others = Folder();
  refuses_others.is_reg = true;  // different captions, and therefore different samples
  for (const std::vector<TrainDataset>& datasets :
       {std::vector{skips, refuses}, std::vector{refuses, skips}, std::vector{skips, refuses_others}}) {
    absl::StatusOr<TrainingSet> set = Scan(datasets, "sks");
    ASSERT_TRUE(set.ok()) << set.status();
    const std::vector<TrainingSample> before = set->samples;
    EXPECT_EQ(set->LeaveOut({{a, "it is away"}}).status(),
              absl::InvalidArgumentError(a + ": it is away; restore it, or set bad_images: skip"));
    EXPECT_EQ(set->samples, before);
  }
  absl::StatusOr<TrainingSet> set = Scan({skips});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->LeaveOut({{b, "it is away"}, {a, "it is away"}}).status(),
            absl::InvalidArgumentError("no image can be used: " + b + ": it is away"));
  EXPECT_EQ(set->samples.size(), 2u);
}

TEST_F(DatasetTest, APictureIsCutToItsBucketAndNoticedWhenItChanged) {
  const std::string path = Copy("source.png", "a.png");
  const absl::StatusOr<TrainingSet> set = Scan({Folder()});
  ASSERT_TRUE(set.ok()) << set.status();
  const absl::StatusOr<Frames> image = LoadTrainingPicture(set->samples[0], {16, 16});
  ASSERT_TRUE(image.ok()) << image.status();
  const absl::StatusOr<std::string> bytes = ReadPictureFile(path);
  ASSERT_TRUE(bytes.ok());
  const absl::StatusOr<Frames> source = DecodePicture(*bytes);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(image->bytes, Resample(*source, {5, 0, 35, 30}, 16, 16).bytes);
  Copy("orientation_1.jpg", "a.png");
  const absl::Status changed = LoadTrainingPicture(set->samples[0], {16, 16}).status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(changed.message()), HasSubstr("a.png: the file has changed"));
}

// Sets of a model that looks at one to three pictures of each image.
class ControlPicturesTest : public DatasetTest {
 protected:
  void SetUp() override {
    DatasetTest::SetUp();
    for (const char* name : {"images/a.png", "images/b.png"}) Copy("source.png", name);
    for (const char* name : {"before/a.jpg", "before/b.jpg"}) Copy("orientation_6.jpg", name);
    Copy("larger_64x48.png", "style/a.png");
    Copy("transparent.png", "style/b.png");
  }

  TrainDataset Images(const std::vector<std::string>& control) const {
    TrainDataset dataset{.folder_path = folder_ / "images", .resolution = {64}};
    for (const std::string& folder : control) dataset.control_path.push_back(folder_ / folder);
    return dataset;
  }
  static absl::StatusOr<TrainingSet> ScanFor(const ControlRules& rules, const std::vector<TrainDataset>& datasets) {
    return ScanDatasets({.datasets = datasets, .default_resolution = 32, .rule = {}, .controls = rules});
  }
  static std::string ErrorFor(const ControlRules& rules, const TrainDataset& dataset) {
    return std::string(ScanFor(rules, {dataset}).status().message());
  }
  // The names of the pictures of a sample, with that of their folder.
  static std::vector<std::string> NamesOf(const TrainingSet& set, size_t sample) {
    std::vector<std::string> names;
    for (const ControlPicture& picture : set.ControlsOf(set.samples[sample])) {
      const fs::path path = picture.path;
      names.push_back((path.parent_path().filename() / path.filename()).string());
    }
    return names;
  }

  static constexpr ControlRules kAnySize = {.fit = ReferenceFit::kQwenEdit, .most = 3, .required = true};
};

TEST_F(ControlPicturesTest, AreThoseOfEachFolderWithTheNameOfTheImage) {
  const absl::StatusOr<TrainingSet> set = ScanFor(kAnySize, {Images({"style", "before"})});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->samples.size(), 2u);
  EXPECT_THAT(NamesOf(*set, 0), ElementsAre("style/a.png", "before/a.jpg"));
  EXPECT_THAT(NamesOf(*set, 1), ElementsAre("style/b.png", "before/b.jpg"));
  const absl::Span<const ControlPicture> pictures = set->ControlsOf(set->samples[0]);
  EXPECT_EQ(pictures[0].size, (PictureSize{64, 48}));
  EXPECT_EQ(pictures[1].size, (PictureSize{16, 24}));
  EXPECT_EQ(pictures[1].digest, LookAtPicture((folder_ / "before/a.jpg").string())->digest);
  EXPECT_EQ(LoadControlPicture(pictures[1])->height, 24);
  Copy("source.png", "before/a.jpg");
  EXPECT_THAT(std::string(LoadControlPicture(pictures[1]).status().message()),
              HasSubstr("before/a.jpg: the file has changed since the run began"));
}

TEST_F(ControlPicturesTest, MayBeNumberedInOneFolderUnlessAnotherImageHasThatName) {
  Copy("source.png", "images/a_2.png");
  for (const char* name : {"numbered/a_10.png", "numbered/a_1.jpg", "numbered/a_2.png", "numbered/b_0.png",
                           "numbered/b_00x.png", "numbered/ab_1.png"}) {
    Copy("source.png", name);
  }
  const absl::StatusOr<TrainingSet> set = ScanFor(kAnySize, {Images({"numbered"})});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->samples.size(), 3u);
  EXPECT_THAT(NamesOf(*set, 0), ElementsAre("numbered/a_1.jpg", "numbered/a_10.png"));
  EXPECT_THAT(NamesOf(*set, 1), ElementsAre("numbered/a_2.png"));
  EXPECT_THAT(NamesOf(*set, 2), ElementsAre("numbered/b_0.png"));
}

TEST_F(ControlPicturesTest, MayBeListedInMetadata) {
  Copy("source.png", "images/in/c.png");
  Write("images/metadata.jsonl",
        "{\"file_name\": \"a.png\", \"text\": \"x\", \"control_file_names\": [\"in/c.png\", \"b.png\"]}\n"
        "{\"file_name\": \"b.png\", \"text\": \"y\", \"control_file_names\": [\"a.png\"]}\n");
  const absl::StatusOr<TrainingSet> set = ScanFor(kAnySize, {Images({})});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(NamesOf(*set, 0), ElementsAre("in/c.png", "images/b.png"));
  EXPECT_THAT(NamesOf(*set, 1), ElementsAre("images/a.png"));
  Copy("source.png", "images/before_b.png");
  Write("images/metadata.jsonl",
        "{\"file_name\": \"b.png\", \"text\": \"y\", \"control_file_names\": [\"before_b.png\"]}\n");
  EXPECT_THAT(ScanFor(kAnySize, {Images({})})->unlisted, ElementsAre((folder_ / "images/a.png").string()));
  EXPECT_THAT(ErrorFor(kAnySize, Images({"before"})),
              HasSubstr("datasets[0].control_path is set, and metadata.jsonl has control_file_names, too"));
  for (const char* names : {"\"b.png\"", "[]", "[3]", "[\"../b.png\"]"}) {
    Write("images/metadata.jsonl",
          absl::StrCat("{\"file_name\": \"a.png\", \"text\": \"x\", \"control_file_names\": ", names, "}\n"));
    EXPECT_THAT(ErrorFor(kAnySize, Images({})),
                AllOf(HasSubstr("metadata.jsonl line 1: field \"control_file_names\" "), HasSubstr("must be")))
        << names;
  }
}

TEST_F(ControlPicturesTest, ThatAreMissingOrDamagedAreNamedWithTheFolder) {
  fs::remove(folder_ / "before/b.jpg");
  const std::string folder = (folder_ / "before").string();
  EXPECT_THAT(ErrorFor(kAnySize, Images({"style", "before"})),
              HasSubstr("1 image cannot be used: " + (folder_ / "images/b.png").string() + ": " + folder +
                        ": there is no picture for it; give b.png or b.jpg, or several as b_0.png, b_1.png"));
  const auto names_of = [&](const TrainDataset& dataset) {
    return DatasetListing::Create(
               {.datasets = {&dataset, 1}, .default_resolution = 32, .rule = {}, .controls = kAnySize})
        ->CheckNames();
  };
  EXPECT_EQ(std::string(names_of(Images({"style", "before"})).message()),
            ErrorFor(kAnySize, Images({"style", "before"})));
  EXPECT_TRUE(names_of(Images({"style"})).ok());
  TrainDataset skips = Images({"style", "before"});
  skips.bad_images = BadImages::kSkip;
  EXPECT_TRUE(names_of(skips).ok());
  const absl::StatusOr<TrainingSet> set = ScanFor(kAnySize, {skips});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->samples.size(), 1u);
  EXPECT_THAT(NamesOf(*set, 0), ElementsAre("style/a.png", "before/a.jpg"));
  EXPECT_THAT(set->Warnings()[0], AllOf(HasSubstr("images/b.png ("), HasSubstr("there is no picture for it")));
  Write("before/b.png", "text");
  EXPECT_THAT(ErrorFor(kAnySize, Images({"before"})), HasSubstr("before/b.png: the file is neither"));
  Copy("source.png", "before/b.png");
  Copy("source.png", "before/b.jpg");
  EXPECT_THAT(ErrorFor(kAnySize, Images({"before"})),
              HasSubstr(folder + ": b.jpg and b.png are for one image; remove one of them"));
  EXPECT_THAT(ErrorFor(kAnySize, Images({"gone"})),
              AllOf(HasSubstr("datasets[0].control_path[0] is '"), HasSubstr("', which cannot be read: No such file")));
}

TEST_F(ControlPicturesTest, FollowTheRulesOfTheModel) {
  EXPECT_THAT(ErrorFor({}, Images({"before"})),
              HasSubstr("datasets[0].control_path is set, and the model looks at no pictures; remove it"));
  EXPECT_THAT(ErrorFor(kAnySize, Images({})),
              HasSubstr("datasets[0].control_path is missing, and the model edits pictures; name a folder"));
  ControlRules rules = kAnySize;
  rules.most = 1;
  EXPECT_THAT(ErrorFor(rules, Images({"style", "before"})),
              HasSubstr("images/a.png: there are 2 pictures for it; the model looks at 1 at most"));
  rules.fit = ReferenceFit::kFlux2;
  EXPECT_THAT(ErrorFor(rules, Images({"before"})),
              HasSubstr("before/a.jpg: the picture has 16x24 pixels; valid are sides of 64 to"));
  rules.required = false;
  const absl::StatusOr<TrainingSet> without = ScanFor(rules, {Images({})});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(without->controls, IsEmpty());
  EXPECT_THAT(without->ControlsOf(without->samples[0]), IsEmpty());
}

TEST_F(ControlPicturesTest, MakeAnImageASampleOfItsOwnUnlessTheyAreTheSame) {
  const absl::StatusOr<TrainingSet> set =
      ScanFor(kAnySize, {Images({"before"}), Images({"style"}), Images({"before"})});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->samples.size(), 4u);
  EXPECT_EQ(set->samples[0].repeats, 2);
  EXPECT_EQ(set->samples[2].repeats, 1);
  EXPECT_THAT(NamesOf(*set, 2), ElementsAre("style/a.png"));
  EXPECT_EQ(set->controls.size(), 4u) << "those of repeats are kept once";
}

TEST_F(ControlPicturesTest, GoWithTheImagesThatAreLeftOut) {
  TrainDataset dataset = Images({"before"});
  dataset.bad_images = BadImages::kSkip;
  absl::StatusOr<TrainingSet> set = ScanFor(kAnySize, {dataset});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_TRUE(set->LeaveOut({{set->samples[0].path, "gone"}}).ok());
  ASSERT_EQ(set->samples.size(), 1u);
  EXPECT_EQ(set->controls.size(), 1u);
  EXPECT_THAT(NamesOf(*set, 0), ElementsAre("before/b.jpg"));
}

}  // namespace
}  // namespace tessera::control
