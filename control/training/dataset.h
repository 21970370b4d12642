// TrainingSet holds the images of a training run: the contents of the configuration's folders, with captions and
// buckets.
//
// All processes of a run that read the same folders get the same samples in the same order. Each file is read once from
// end to end and decoded, which finds damaged files and yields a digest of the content. The processes of a run may
// divide this work (DatasetListing).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/files/sha256.h"
#include "control/pictures/picture.h"
#include "control/training/buckets.h"
#include "control/training/config.h"

namespace tessera::control {

enum class ReferenceFit : uint8_t;  // control/pictures/picture_input.h

// The file of a folder that lists its images with their captions.
inline constexpr char kMetadata[] = "metadata.jsonl";

// SHA-256 of a file as raw bytes, because a run keeps one for each sample.
using PictureDigest = std::array<char, base::kSha256Bytes>;

// The digest as 64 hexadecimal digits.
std::string DigestText(const PictureDigest& digest);

// A picture at which the model looks while it makes an image.
struct ControlPicture {
  std::string path;
  PictureDigest digest = {};
  PictureSize size;

  bool operator==(const ControlPicture&) const = default;
};

// One image at one resolution. Its index in TrainingSet::samples is its id and the key of its random numbers.
struct TrainingSample {
  std::string path;
  PictureDigest digest = {};
  std::string caption;  // as the model receives it, with the trigger word; may be empty
  double caption_dropout_rate = 0;
  PictureSize size;       // of the picture
  int64_t bucket = 0;     // index in TrainingSet::buckets
  int64_t repeats = 1;    // visits in an epoch
  int32_t controls = -1;  // index in TrainingSet::controls; -1: the model looks at no picture
  bool is_reg = false;
  bool cache_latents_to_disk = true;
  bool cache_text_embeddings = true;
  BadImages bad_images = BadImages::kRefuse;  // kSkip if all folders that list the sample have it

  bool operator==(const TrainingSample&) const = default;
};

struct LeftOutImage {
  std::string path;
  std::string reason;

  bool operator==(const LeftOutImage&) const = default;
};

// Strips the path from a reason that begins with it, as errors do.
LeftOutImage LeftOut(const std::string& path, const std::string& reason);

struct TrainingSet {
  std::vector<Bucket> buckets;  // buckets with samples, rising
  std::vector<TrainingSample> samples;
  std::vector<std::vector<ControlPicture>>
      controls;                              // of the samples that have any, in the order of the model's inputs
  std::vector<LeftOutImage> left_out;        // under BadImages::kSkip
  std::vector<std::string> without_caption;  // paths of images whose caption is missing or empty
  std::vector<std::string> unlisted;         // images in the folder of a metadata.jsonl that does not list them
  std::vector<std::string> unread;           // caption files of another kind in the folder of a metadata.jsonl
  int64_t enlarged = 0;                      // samples whose picture is smaller than the bucket

  // The pictures at which the model looks for this sample.
  absl::Span<const ControlPicture> ControlsOf(const TrainingSample& sample) const;

  // What the user should know about the above, in whole sentences; each names at most three files.
  std::vector<std::string> Warnings() const;
  // Returns Warnings and frees the names, which a run does not need.
  std::vector<std::string> TakeWarnings();

  // Removes all samples of images that turned out to be unusable after the scan, so that the set equals that of a
  // scan without them. The caller reports them (LeftOutText). Returns the indexes that the removed samples had, rising.
  // InvalidArgument, with nothing removed, if one of them is not under BadImages::kSkip or if no sample would be left.
  absl::StatusOr<std::vector<int64_t>> LeaveOut(absl::Span<const LeftOutImage> images);
};

// "2 images are left out: a.png (reason), b.png (reason)"; names at most three.
std::string LeftOutText(absl::Span<const LeftOutImage> images);

// For pictures whose captions are longer than the model reads, each listed once, with the cut part of the first
// caption: "2 captions are longer than the model reads and will be cut: a.png, b.png; of the first …"; names at most
// three.
std::string CutCaptionsText(const std::vector<std::string>& pictures, const std::string& first);

// The error for a picture under BadImages::kRefuse that has become unusable since the scan: `error` and what to do
// about it.
absl::Status RefusedSinceTheScan(const absl::Status& error);

// The pictures at which a model looks while it makes an image.
struct ControlRules {
  ReferenceFit fit = {};  // how they are brought to size
  int32_t most = 0;       // for one image; 0: the model looks at none
  bool required = false;  // it makes no image without one
};

// Selects the folders to scan, and the sizes and the pictures that the model accepts.
struct DatasetOptions {
  absl::Span<const TrainDataset> datasets;
  std::string trigger_word;
  int64_t default_resolution = 0;  // of folders without their own
  BucketRule rule;
  ControlRules controls;
};

// If a folder has a metadata.jsonl (one JSON object per line with "file_name", relative to the folder, and "text"), its
// images are those that the file lists, in its order. Otherwise its images are its files *.png, *.jpg and *.jpeg in the
// order of their names, and the caption of a.png is the text of the file a.txt (or the extension in caption_ext) in the
// same folder. An image that is listed several times with equal caption and options, or in a folder that is, becomes
// one sample with more repeats: num_repeats: 2 equals listing the folder twice.
//
// The pictures at which the model looks for an image are those of control_path with its name (ControlFolders) or, if
// there is no control_path, those that its line of metadata.jsonl lists as "control_file_names", relative to the folder
// like "file_name". An image whose pictures are missing, too many, or of a size that the model does not accept, cannot
// be used.
//
// NotFound: a folder does not exist. InvalidArgument: a folder has no images, or the model does not accept a
// resolution, looks at no pictures where control_path is set, or needs some where a folder has none. Under
// BadImages::kRefuse, InvalidArgument also lists the images whose pixels or captions cannot be used and the lines of
// metadata.jsonl that name no image, with their number, names and reasons; under kSkip, that no image is left.
absl::StatusOr<TrainingSet> ScanDatasets(const DatasetOptions& options);

// Size and digest of a picture's file.
struct PictureContent {
  PictureSize size;
  PictureDigest digest = {};
};

// Reads a picture's file from end to end and decodes it. Errors as in control/pictures/picture.h; all begin with the
// path.
absl::StatusOr<PictureContent> LookAtPicture(const std::string& path);

// ScanDatasets in two parts, so that several processes can divide the pictures among them.
class DatasetListing final {
 public:
  // Reads names and captions, but no picture. `options` must outlive the listing. Errors as for ScanDatasets.
  static absl::StatusOr<DatasetListing> Create(const DatasetOptions& options);

  // The pictures' files, each once. Listings with the same names and captions have equal digests.
  const std::vector<std::string>& paths() const { return paths_; }
  std::string Digest() const;

  // Returns the errors of Scan that are known before any picture is read: captions that cannot be used, and images
  // without the pictures at which the model looks.
  absl::Status CheckNames() const;

  // Builds the set from the results of LookAtPicture for each of paths(). Moves the captions into it. Errors as for
  // ScanDatasets.
  absl::StatusOr<TrainingSet> Scan(absl::Span<const absl::StatusOr<PictureContent>> contents) &&;

 private:
  struct Folder {
    const TrainDataset* dataset;
    std::vector<std::vector<Bucket>> buckets;  // of each resolution
    struct Picture {
      size_t path;                          // index in paths_
      absl::StatusOr<std::string> caption;  // an error says why it cannot be used
    };
    std::vector<Picture> pictures;
    // For each picture the indexes in paths_ of those at which the model looks; an error says why it cannot be used.
    // Empty if the folder's images have none.
    std::vector<absl::StatusOr<std::vector<size_t>>> controls;
    std::vector<LeftOutImage> lines;  // lines of metadata.jsonl that name no picture, as "PATH line 3"
  };

  explicit DatasetListing(const DatasetOptions& options) : options_(&options) {}

  // Adds these paths and returns their indexes.
  std::vector<size_t> AddPaths(const std::vector<std::string>& paths);
  void KeepEachPathOnce();
  // The pictures at which the model looks for an image of the folder. An error says why the image cannot be used.
  absl::StatusOr<std::vector<ControlPicture>> ControlsOf(
      const Folder& folder, size_t picture, absl::Span<const absl::StatusOr<PictureContent>> contents) const;

  const DatasetOptions* options_;
  std::vector<Folder> folders_;
  std::vector<std::string> paths_;
  std::vector<std::string> unlisted_, unread_;
};

// Replaces every "[trigger]" of a caption by the word. If there is none and `in_front`, puts the word in front. An
// empty word removes "[trigger]".
std::string WithTriggerWord(const std::string& caption, const std::string& word, bool in_front);

// Loads a sample's picture, cropped around the centre to the aspect ratio of its bucket and scaled to its size. The
// file must be unchanged since the scan; otherwise the error begins with the path and says that it has changed:
// DataLoss if its content differs, even if it is a valid picture, or the errors of ReadPictureFile if it cannot be
// read. Other errors are those of DecodePicture.
absl::StatusOr<Frames> LoadTrainingPicture(const TrainingSample& sample, const Bucket& bucket);

// Loads a picture at which the model looks, as it is in its file. Errors as above.
absl::StatusOr<Frames> LoadControlPicture(const ControlPicture& picture);

}  // namespace tessera::control
