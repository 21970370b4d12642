// The pictures and captions of a training run as the transformer is given them: encoded once, before the first step,
// and kept in the host's memory.
//
// Each picture is encoded by one of all ranks and each caption by the ranks of every replica that hold the text
// encoders; every rank then holds all of them, since a run comes to its samples in a global order.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/training/dataset.h"
#include "models/families/family.h"
#include "runtime/training/sample_noise.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

// How captions are read.
struct CaptionOptions {
  int64_t max_sequence_length = 0;
  double guidance_scale = 1;  // that a guidance-distilled model is told
  bool clean_caption = false;
};

// Used by one thread. Family and groups outlive it.
class TrainingSamples final {
 public:
  TrainingSamples(control::TrainingSet set, models::Family& family, const TrainingGroups& groups,
                  const CaptionOptions& options);

  const control::TrainingSet& set() const { return set_; }
  int64_t count() const { return static_cast<int64_t>(set_.samples.size()); }
  int64_t prepared() const { return static_cast<int64_t>(encoded_.size()); }

  // Encodes up to `most` further samples, on all ranks together. Errors: those of control/picture.h for a picture,
  // ABORTED on the ranks that encode others; those of Family::Encode, which every rank gets.
  absl::Status Prepare(int64_t most);

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
  absl::StatusOr<models::LatentPosterior> EncodePicture(int64_t sample);
  absl::StatusOr<models::ConditioningRow> EncodeCaption(const std::string& caption, const control::Bucket& bucket);
  models::ConditioningRow OnDevice(const models::ConditioningRow& row) const;

  control::TrainingSet set_;
  models::Family& family_;
  const TrainingGroups& groups_;
  const CaptionOptions options_;
  std::vector<Encoded> encoded_;                     // of the first samples
  std::vector<models::ConditioningRow> no_caption_;  // by bucket, once the first sample is prepared
};

}  // namespace tessera::runtime
