// The pictures and captions of a training run as the transformer is given them: encoded once, before the first step,
// and kept on the disk. In memory are those of the pass under way and of the next one, which a thread reads.
//
// Each picture is encoded by one of all ranks and each caption by the ranks of every replica that hold the text
// encoders. Every rank reads those of its passes from the same files, so that all topologies compute with the same
// numbers. What a rank does not find on the disk when it was encoded, as where the datasets want no files or the disk
// is full, it keeps in memory.
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
#include "control/training/dataset.h"
#include "models/families/family.h"
#include "runtime/engine/model_contents.h"
#include "runtime/training/data/content_cache.h"
#include "runtime/training/sample_cache.h"
#include "runtime/training/sample_noise.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

// How captions are read, and where encodings are kept.
struct SampleOptions {
  int64_t max_sequence_length = 0;
  double guidance_scale = 1;  // that a guidance-distilled model is told
  bool clean_caption = false;
  std::string cache;   // folder
  ModelContents base;  // of the model that encodes
};

// Used by one thread. Family and groups outlive it.
class TrainingSamples final {
 public:
  TrainingSamples(control::TrainingSet set, models::Family& family, const TrainingGroups& groups,
                  SampleOptions options);

  const control::TrainingSet& set() const { return set_; }
  int64_t count() const { return static_cast<int64_t>(set_.samples.size()); }
  int64_t prepared() const { return prepared_; }

  // Encodes up to `most` further samples, on all ranks together, or reads them from the cache. A picture under
  // BadImages::kSkip that cannot be loaded any more is left out with all of its samples when the last one is prepared:
  // set() and count() are then those without it, on every rank alike, and a warning counts and names it. Errors, which
  // every rank gets: those of control::LoadTrainingPicture for another picture, those of Family::Encode.
  absl::Status Prepare(int64_t most);

  // Of the samples that were prepared, those whose picture and those whose caption was in the cache.
  int64_t cached_pictures() const { return cached_pictures_; }
  int64_t cached_captions() const { return cached_captions_; }
  // Which pictures were left out, as the warning says; empty: none.
  const std::string& left_out() const { return left_out_; }
  // Of the last Prepare, the same on all ranks.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Brings samples that are prepared into memory, in place of those of the last call, on all ranks together: `samples`
  // are those of this rank's replica, in the same order on all of its ranks, and `next` those of the coming call, of
  // which a thread begins to read; none where the next call is not known. What is damaged or missing on the disk by now
  // is encoded again; errors, which every rank gets, are those of Prepare.
  absl::Status Fetch(const std::vector<int64_t>& samples, const std::vector<int64_t>& next);

  // Of a sample that was fetched: its latents at one visit, drawn from what the autoencoder made of the picture,
  // [c, h, w] on the host in max(fp32, dtype).
  at::Tensor Latents(const SampleKey& visit) const;
  // And its caption, or no caption, on the model's device.
  models::ConditioningRow Caption(int64_t sample) const { return OnDevice(*window_.at(sample).caption); }
  models::ConditioningRow NoCaption(int64_t sample) const;

 private:
  // Parts that are not found are empty.
  struct Encoded {
    at::Tensor posterior;  // mean and deviation, [2, c, h, w]
    std::optional<models::ConditioningRow> caption;
  };
  using Window = std::map<int64_t, Encoded>;
  // Of a part that is not on the disk, the key is empty.
  struct Wanted {
    int64_t sample = 0;
    std::string picture, caption;
  };

  static size_t Index(int64_t sample) { return static_cast<size_t>(sample); }
  const control::TrainingSample& SampleOf(int64_t sample) const { return set_.samples[Index(sample)]; }
  const control::Bucket& BucketOf(int64_t sample) const { return set_.buckets[Index(SampleOf(sample).bucket)]; }

  // Of pictures that are to be left out, posteriors are not defined.
  absl::Status EncodePictures(int64_t first, std::vector<at::Tensor>& posteriors);
  absl::Status PrepareCaption(int64_t sample, const at::Tensor& posterior);
  at::Tensor EmptyPosterior(int64_t sample) const;
  // From the cache, or encoded; `loaded` becomes the error where that is one of loading the picture.
  absl::StatusOr<at::Tensor> PosteriorOf(int64_t sample, absl::Status& loaded);
  absl::StatusOr<at::Tensor> EncodePicture(const control::Image& image);
  absl::StatusOr<models::EncodedPrompt> EncodeCaption(const std::string& caption, const control::Bucket& bucket,
                                                      bool cached);
  absl::StatusOr<models::EncodedPrompt> EncodeOnThisRank(const std::string& caption, const control::Bucket& bucket);
  // Keys of the cache; what they begin with.
  std::string PictureKey(int64_t sample) const;
  std::string CaptionKey(const std::string& caption, const control::Bucket& bucket) const;
  std::vector<std::string> KeyOf(const char* kind, const std::string& encoder, const control::Bucket& bucket) const;
  // Keeps in memory what this rank does not find on the disk.
  void Hold(int64_t sample, const at::Tensor& posterior, models::ConditioningRow caption);
  Wanted WantedOf(int64_t sample) const;
  // Where these are; nothing where none is on the disk.
  std::optional<ContentCache> FolderOf(const std::vector<Wanted>& wanted);
  static Window Read(const std::optional<ContentCache>& folder, const std::vector<Wanted>& wanted);
  Window Take(const std::vector<int64_t>& samples);
  void ReadAhead(const std::vector<int64_t>& next);
  // Collective.
  absl::Status EncodeMissing(const std::vector<int64_t>& samples, Window& window);
  absl::Status EncodeMissingCaptions(const std::vector<int64_t>& samples, Window& window);
  models::ConditioningRow OnDevice(const models::ConditioningRow& row) const;
  // Once the last sample is prepared: removes the pictures that are to be left out, and says which captions were longer
  // than the model reads.
  absl::Status LeaveOutUnusable();
  absl::Status WarnOfCutCaptions();

  control::TrainingSet set_;
  models::Family& family_;
  const TrainingGroups& groups_;
  const SampleOptions options_;
  SampleCache cache_;
  int64_t cached_pictures_ = 0, cached_captions_ = 0;
  std::vector<std::string> warnings_;
  std::vector<int64_t> cut_captions_;            // samples whose captions were cut
  std::vector<control::LeftOutImage> unusable_;  // to be left out, once for each sample
  std::string left_out_;
  int64_t prepared_ = 0;                             // the first samples
  std::vector<models::ConditioningRow> no_caption_;  // by bucket, once the first sample is prepared
  Window held_;                                      // parts of samples that are not on the disk
  Window window_;                                    // what was fetched
  std::future<Window> reading_;                      // of the coming call; not valid: nothing is read
};

}  // namespace tessera::runtime
