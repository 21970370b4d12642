// TrainingSamples holds the encoded pictures and captions of a training run. They are encoded once, before the first
// step, and kept on the disk. Only those of the current pass and of the next one, which a thread reads ahead, are in
// memory.
//
// The pictures at which a model looks while it makes an image are brought to size and encoded as those of a request are
// (runtime/denoising/picture_inputs.h). If its prompts hold them, a caption is encoded with its sample's pictures, and
// so is the empty caption of a visit that drops it: only the text is dropped, as in the negative prompt of a request.
//
// Each picture is encoded by one rank, and each caption by the ranks of every replica that hold the text encoders.
// Every rank reads the samples of its passes from the same files, so that all topologies compute with the same numbers.
// Encodings that a rank does not find on the disk, because the datasets disable the cache or the disk is full, are kept
// in memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/training/dataset.h"
#include "models/families/family.h"
#include "runtime/group/model_contents.h"
#include "runtime/training/data/content_cache.h"
#include "runtime/training/sample_cache.h"
#include "runtime/training/sample_noise.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

// Options for encoding captions, and the place of the encodings.
struct SampleOptions {
  int64_t max_sequence_length = 0;
  double guidance_scale = 1;  // input of a guidance-distilled model
  bool clean_caption = false;
  control::ReferenceFit references = {};  // how pictures at which the model looks are brought to size
  bool prompts_hold_pictures = false;     // whether the text encoders read these, too
  std::string cache;                      // folder
  ModelContents base;                     // of the encoding model
};

// The pictures at which the model looks for a sample.
struct SampleReferences {
  std::vector<at::Tensor> patches;  // [1, m, features] each, in the model's dtype, on the host
  std::vector<models::TokenGrid> grids;
};

// Used by one thread. Family and groups must outlive it.
class TrainingSamples final {
 public:
  TrainingSamples(control::TrainingSet set, models::Family& family, const TrainingGroups& groups,
                  SampleOptions options);

  const control::TrainingSet& set() const { return set_; }
  int64_t count() const { return static_cast<int64_t>(set_.samples.size()); }
  int64_t prepared() const { return prepared_; }

  // Encodes up to `most` further samples, or reads them from the cache. Called on all ranks together. If a picture
  // under BadImages::kSkip can no longer be loaded, all of its samples are left out once the last sample is prepared:
  // set() and count() then exclude them on every rank, and a warning counts and names the pictures. Every rank gets the
  // same errors: those of control::LoadTrainingPicture for other pictures, and those of Family::Encode.
  absl::Status Prepare(int64_t most);

  // The number of prepared samples whose picture, or whose caption, was in the cache.
  int64_t cached_pictures() const { return cached_pictures_; }
  int64_t cached_captions() const { return cached_captions_; }
  // The pictures that were left out, as in the warning; empty: none.
  const std::string& left_out() const { return left_out_; }
  // Warnings of the last Prepare, the same on all ranks.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Loads prepared samples into memory, in place of those of the last call. Called on all ranks together. `samples` are
  // those of this rank's replica, in the same order on all of its ranks. `next` are those of the next call, which a
  // thread starts to read; empty if they are unknown. Samples that are now damaged or missing on the disk are encoded
  // again. Every rank gets the same errors, those of Prepare.
  absl::Status Fetch(const std::vector<int64_t>& samples, const std::vector<int64_t>& next);

  // The latents of a fetched sample at one visit, drawn from the autoencoder's distribution for the picture: [c, h, w]
  // on the host in max(fp32, dtype).
  at::Tensor Latents(const SampleKey& visit) const;
  SampleReferences References(int64_t sample) const;
  // The sample's caption, or the empty caption, on the model's device.
  models::ConditioningRow Caption(int64_t sample) const { return OnDevice(*window_.at(sample).caption); }
  models::ConditioningRow NoCaption(int64_t sample) const;

 private:
  // A part that was not found is empty.
  struct Encoded {
    // The mean and deviation of the image, [2, c, h, w], and the mean [1, c, h, w] of each picture at which the model
    // looks.
    std::vector<at::Tensor> pictures;
    std::optional<models::ConditioningRow> caption;
    std::optional<models::ConditioningRow> no_caption;  // only for a sample that HoldsNoCaption
  };
  using Window = std::map<int64_t, Encoded>;
  // Keys of a sample's parts in the cache; empty for a part that is not on the disk.
  struct Wanted {
    int64_t sample = 0;
    std::vector<std::string> pictures;
    std::string caption, no_caption;

    bool any() const;
  };
  // What the encoding of a caption depends on.
  struct CaptionSource {
    std::string text;
    control::Bucket bucket;
    absl::Span<const control::ControlPicture> pictures;  // that the prompt holds
    bool cached = false;                                 // whether it may be on the disk
  };

  static size_t Index(int64_t sample) { return static_cast<size_t>(sample); }
  const control::TrainingSample& SampleOf(int64_t sample) const { return set_.samples[Index(sample)]; }
  const control::Bucket& BucketOf(int64_t sample) const { return set_.buckets[Index(SampleOf(sample).bucket)]; }

  absl::Span<const control::ControlPicture> ControlsOf(int64_t sample) const {
    return set_.ControlsOf(SampleOf(sample));
  }
  // The size at which the model reads a picture.
  control::Bucket ReadSizeOf(const control::ControlPicture& picture) const;
  // Whether the empty caption of the sample is not that of its bucket, because the prompt holds pictures.
  bool HoldsNoCaption(int64_t sample) const;

  // Leaves the pictures of samples that are to be left out empty.
  absl::Status EncodePictures(int64_t first, std::vector<std::vector<at::Tensor>>& pictures);
  absl::Status PrepareCaption(int64_t sample, const std::vector<at::Tensor>& pictures);
  // Unset tensors for Encoded::pictures.
  std::vector<at::Tensor> EmptyPictures(int64_t sample) const;
  // Returns Encoded::pictures, from the cache or encoded. If a picture cannot be loaded, `loaded` becomes the error.
  absl::StatusOr<std::vector<at::Tensor>> PicturesOf(int64_t sample, absl::Status& loaded);
  // Finds a tensor like `like` in the cache; undefined if there is none.
  at::Tensor FindPicture(const std::string& key, const at::Tensor& like);
  absl::StatusOr<at::Tensor> EncodePicture(const control::Frames& image);
  absl::StatusOr<at::Tensor> EncodeReference(const control::Frames& picture);
  CaptionSource CaptionOf(int64_t sample) const;
  CaptionSource NoCaptionOf(int64_t sample) const;
  absl::StatusOr<models::EncodedPrompt> EncodeCaption(const CaptionSource& caption);
  absl::StatusOr<models::EncodedPrompt> EncodeOnThisRank(const CaptionSource& caption);
  // Keys of the cache, and the parts that they begin with. PictureKeys are those of Encoded::pictures.
  std::vector<std::string> PictureKeys(int64_t sample) const;
  std::string CaptionKey(const CaptionSource& caption) const;
  std::vector<std::string> KeyOf(const char* kind, const std::string& encoder, const control::Bucket& bucket) const;
  bool LacksCaption(int64_t sample, const Encoded& encoded) const;
  // Keeps the parts that this rank does not find on the disk in memory.
  void Hold(int64_t sample, Encoded encoded);
  Wanted WantedOf(int64_t sample) const;
  // The cache's folder; nullopt if none of these parts is on the disk.
  std::optional<ContentCache> FolderOf(const std::vector<Wanted>& wanted);
  static Window Read(const std::optional<ContentCache>& folder, const std::vector<Wanted>& wanted);
  Window Take(const std::vector<int64_t>& samples);
  void ReadAhead(const std::vector<int64_t>& next);
  // Collective operations.
  absl::Status EncodeMissing(const std::vector<int64_t>& samples, Window& window);
  absl::Status EncodeMissingCaptions(const std::vector<int64_t>& samples, Window& window);
  models::ConditioningRow OnDevice(const models::ConditioningRow& row) const;
  // Called once the last sample is prepared. Removes the pictures that are to be left out, and warns of captions that
  // are longer than the model reads.
  absl::Status LeaveOutUnusable();
  absl::Status WarnOfCutCaptions();
  // The steps need no encoder. What samples of later requests need is read again.
  void ReleaseEncoders();

  control::TrainingSet set_;
  models::Family& family_;
  const TrainingGroups& groups_;
  const SampleOptions options_;
  SampleCache cache_;
  int64_t cached_pictures_ = 0, cached_captions_ = 0;
  std::vector<std::string> warnings_;
  std::vector<int64_t> cut_captions_;            // samples whose captions were cut
  std::vector<control::LeftOutImage> unusable_;  // to be left out, one entry for each sample
  std::string left_out_;
  int64_t prepared_ = 0;  // the first samples
  // By bucket; set when the first sample is prepared, unless prompts hold pictures.
  std::vector<models::ConditioningRow> no_caption_;
  Window held_;                  // parts of samples that are not on the disk
  Window window_;                // the fetched samples
  std::future<Window> reading_;  // samples of the next call; invalid: no read is running
};

}  // namespace tessera::runtime
