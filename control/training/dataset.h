// The images that a run is made of: what the folders of its configuration hold, with captions and buckets.
//
// Every process of a run that reads the same folders gets the same samples in the same order. Each file is read once
// from end to end and decoded, which finds those that are damaged and says what their content is; the processes of a
// run may share that out (DatasetListing).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/sha256.h"
#include "control/picture.h"
#include "control/training/buckets.h"
#include "control/training/config.h"

namespace tessera::control {

// SHA-256 of a file, in the bytes that it has: a run keeps one of each sample.
using PictureDigest = std::array<char, base::kSha256Bytes>;

// 64 hexadecimal digits.
std::string DigestText(const PictureDigest& digest);

// One image at one resolution. Its place in TrainingSet::samples is its id, the key of its random numbers.
struct TrainingSample {
  std::string path;
  PictureDigest digest = {};
  std::string caption;  // as the model is to be told it, the trigger word included; may be empty
  double caption_dropout_rate = 0;
  PictureSize size;     // of the picture
  int64_t bucket = 0;   // among TrainingSet::buckets
  int64_t repeats = 1;  // visits in an epoch
  bool is_reg = false;
  bool cache_latents_to_disk = true;
  bool cache_text_embeddings = true;
  BadImages bad_images = BadImages::kRefuse;  // kSkip where all folders that list the sample have it

  bool operator==(const TrainingSample&) const = default;
};

struct LeftOutImage {
  std::string path;
  std::string reason;

  bool operator==(const LeftOutImage&) const = default;
};

// Of a reason that may begin with the path, as errors do.
LeftOutImage LeftOut(const std::string& path, const std::string& reason);

struct TrainingSet {
  std::vector<Bucket> buckets;  // those that have samples, rising
  std::vector<TrainingSample> samples;
  std::vector<LeftOutImage> left_out;        // under BadImages::kSkip
  std::vector<std::string> without_caption;  // paths of images whose caption is missing or empty
  std::vector<std::string> unlisted;         // images beside a metadata.jsonl that does not name them
  std::vector<std::string> unread;           // files of captions of another kind beside a metadata.jsonl
  int64_t enlarged = 0;                      // samples whose picture is smaller than its bucket

  // What the user should know of the above, in whole sentences; each names three files at most.
  std::vector<std::string> Warnings() const;
  // And forgets the names, which a run does not need.
  std::vector<std::string> TakeWarnings();

  // Removes all samples of pictures that turn out to be unusable after the scan, so that the set is that of a scan
  // which left them out; the caller reports them (LeftOutText). Returns the places that the removed samples had,
  // rising. InvalidArgument, and nothing is removed, where one of them is not under BadImages::kSkip, or no sample is
  // left.
  absl::StatusOr<std::vector<int64_t>> LeaveOut(absl::Span<const LeftOutImage> images);
};

// "2 images are left out: a.png (reason), b.png (reason)", which names three at most.
std::string LeftOutText(absl::Span<const LeftOutImage> images);

// Of pictures whose captions are longer than the model reads, each once, and what was cut of the first: "2 captions are
// longer than the model reads and cut: a.png, b.png; of the first …", which names three at most.
std::string CutCaptionsText(const std::vector<std::string>& pictures, const std::string& first);

// The error of a picture under BadImages::kRefuse that was usable when it was scanned and is not any more: `error` and
// what to do.
absl::Status RefusedSinceTheScan(const absl::Status& error);

// Which folders, and for which model.
struct DatasetOptions {
  absl::Span<const TrainDataset> datasets;
  std::string trigger_word;
  int64_t default_resolution = 0;  // of folders that do not say theirs
  BucketRule rule;
};

// A folder with a metadata.jsonl (one JSON object a line with "file_name", relative to the folder, and "text") has the
// images that it lists, in its order. Else its images are its files *.png, *.jpg and *.jpeg in order of their names,
// and the caption of a.png is the text of the file a.txt (or whatever caption_ext says) beside it. An image that is
// listed more than once with the same caption and options, or in a folder that is, is one sample with more repeats:
// num_repeats: 2 is the folder twice.
//
// NotFound: a folder is missing. InvalidArgument: a folder without images, a resolution that the model does not take.
// Under BadImages::kRefuse the images that cannot be used, by their pixels or their captions, and the lines of
// metadata.jsonl that name none, with their number, names and reasons; under kSkip that no image is left.
absl::StatusOr<TrainingSet> ScanDatasets(const DatasetOptions& options);

// What is known of a picture's file.
struct PictureContent {
  PictureSize size;
  PictureDigest digest = {};
};

// Reads a picture's file from end to end and decodes it. Errors of control/picture.h, all of which begin with the path.
absl::StatusOr<PictureContent> LookAtPicture(const std::string& path);

// ScanDatasets in two parts, so that whoever has several processes can deal out the pictures between them.
class DatasetListing final {
 public:
  // Reads names and captions, but no picture. `options` outlive the listing. Errors as ScanDatasets.
  static absl::StatusOr<DatasetListing> Create(const DatasetOptions& options);

  // The pictures' files, each once. Two listings of the same names and captions have equal digests.
  const std::vector<std::string>& paths() const { return paths_; }
  std::string Digest() const;

  // The set, with what LookAtPicture says of each of paths(). Takes the captions. Errors as ScanDatasets.
  absl::StatusOr<TrainingSet> Scan(absl::Span<const absl::StatusOr<PictureContent>> contents) &&;

 private:
  struct Folder {
    const TrainDataset* dataset;
    std::vector<std::vector<Bucket>> buckets;  // of each resolution
    struct Picture {
      size_t path;                          // among paths_
      absl::StatusOr<std::string> caption;  // an error says why it cannot be used
    };
    std::vector<Picture> pictures;
    std::vector<LeftOutImage> lines;  // of metadata.jsonl, "PATH line 3", that name no picture
  };

  explicit DatasetListing(const DatasetOptions& options) : options_(&options) {}

  void KeepEachPathOnce();

  const DatasetOptions* options_;
  std::vector<Folder> folders_;
  std::vector<std::string> paths_;
  std::vector<std::string> unlisted_, unread_;
};

// A caption with every "[trigger]" replaced by the word. One without any gets the word in front where `in_front`.
// Without a word, "[trigger]" goes away.
std::string WithTriggerWord(const std::string& caption, const std::string& word, bool in_front);

// The picture of a sample at the size of its bucket, cut to its proportions around the centre. The file must be as the
// scan found it. Errors begin with the path and say that it has changed: DataLoss where it has another content, be it
// that of another picture; those of ReadPictureFile where it cannot be read. Else those of DecodePicture.
absl::StatusOr<Image> LoadTrainingPicture(const TrainingSample& sample, const Bucket& bucket);

}  // namespace tessera::control
