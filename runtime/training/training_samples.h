// The pictures and captions of a training run as the transformer is given them: encoded once, before the first step,
// and kept in the host's memory, and on the disk where the datasets say so.
//
// Each picture is encoded by one of all ranks and each caption by the ranks of every replica that hold the text
// encoders; every rank then holds all of them, since a run comes to its samples in a global order.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/training/dataset.h"
#include "models/families/family.h"
#include "runtime/engine/model_contents.h"
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
  int64_t prepared() const { return static_cast<int64_t>(encoded_.size()); }

  // Encodes up to `most` further samples, on all ranks together, or reads them from the cache. Errors, which every rank
  // gets: those of control/picture.h for a picture, those of Family::Encode.
  absl::Status Prepare(int64_t most);

  // Of the samples that are prepared, those whose picture and those whose caption was in the cache.
  int64_t cached_pictures() const { return cached_pictures_; }
  int64_t cached_captions() const { return cached_captions_; }
  // Of the last Prepare, the same on all ranks.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Of a sample that is prepared: its latents at one visit, drawn from what the autoencoder made of the picture,
  // [c, h, w] on the host in max(fp32, dtype).
  at::Tensor Latents(const SampleKey& visit) const;
  // And its caption, or no caption, on the model's device.
  models::ConditioningRow Caption(int64_t sample) const { return OnDevice(encoded_[Index(sample)].caption); }
  models::ConditioningRow NoCaption(int64_t sample) const;

 private:
  struct Encoded {
    at::Tensor mean, deviation;  // [c, h, w]
    models::ConditioningRow caption;
  };

  static size_t Index(int64_t sample) { return static_cast<size_t>(sample); }
  const control::TrainingSample& SampleOf(int64_t sample) const { return set_.samples[Index(sample)]; }
  const control::Bucket& BucketOf(int64_t sample) const { return set_.buckets[Index(SampleOf(sample).bucket)]; }

  absl::Status EncodePictures(int64_t first, std::vector<Encoded>& encoded);
  // Mean and deviation, [2, c, h, w].
  absl::StatusOr<at::Tensor> PosteriorOf(int64_t sample, at::IntArrayRef shape);
  absl::StatusOr<at::Tensor> EncodePicture(int64_t sample);
  absl::StatusOr<models::EncodedPrompt> EncodeCaption(const std::string& caption, const control::Bucket& bucket,
                                                      bool cached);
  absl::StatusOr<models::EncodedPrompt> EncodeOnThisRank(const std::string& caption, const control::Bucket& bucket);
  // What a key of the cache begins with.
  std::vector<std::string> KeyOf(const char* kind, const std::string& encoder, const control::Bucket& bucket) const;
  models::ConditioningRow OnDevice(const models::ConditioningRow& row) const;

  control::TrainingSet set_;
  models::Family& family_;
  const TrainingGroups& groups_;
  const SampleOptions options_;
  SampleCache cache_;
  int64_t cached_pictures_ = 0, cached_captions_ = 0;
  std::vector<std::string> warnings_;
  std::vector<Encoded> encoded_;                     // of the first samples
  std::vector<models::ConditioningRow> no_caption_;  // by bucket, once the first sample is prepared
};

}  // namespace tessera::runtime
