#include "runtime/training/training_samples.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "models/precision.h"
#include "runtime/engine/prompt_broadcast.h"

namespace tessera::runtime {
namespace {

// [1, 3, height, width] in [-1, 1].
at::Tensor PixelsOf(const control::Image& image) {
  const at::Tensor rgb =
      at::from_blob(const_cast<uint8_t*>(image.rgb.data()), {image.height, image.width, 3}, at::kByte);
  return rgb.permute({2, 0, 1}).to(at::kDouble).div(127.5).sub(1).unsqueeze(0);
}

models::ConditioningRow OnHost(models::ConditioningRow row) {
  if (row.text.defined()) row.text = row.text.cpu();
  for (at::Tensor& extra : row.extras) extra = extra.cpu();
  return row;
}

}  // namespace

TrainingSamples::TrainingSamples(control::TrainingSet set, models::Family& family, const TrainingGroups& groups,
                                 const CaptionOptions& options)
    : set_(std::move(set)), family_(family), groups_(groups), options_(options) {}

absl::Status TrainingSamples::Prepare(int64_t most) {
  if (no_caption_.empty()) {
    for (const control::Bucket& bucket : set_.buckets) {
      ASSIGN_OR_RETURN(models::ConditioningRow row, EncodeCaption("", bucket));
      no_caption_.push_back(std::move(row));
    }
  }
  const int64_t first = prepared();
  std::vector<Encoded> encoded(static_cast<size_t>(std::min(most, count() - first)));
  RETURN_IF_ERROR(EncodePictures(first, encoded));
  for (size_t i = 0; i < encoded.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    ASSIGN_OR_RETURN(encoded[i].caption, EncodeCaption(SampleOf(sample).caption, BucketOf(sample)));
  }
  std::ranges::move(encoded, std::back_inserter(encoded_));
  return absl::OkStatus();
}

absl::Status TrainingSamples::EncodePictures(int64_t first, std::vector<Encoded>& encoded) {
  const int ranks = groups_.all.size();
  absl::Status status;
  for (size_t i = 0; i < encoded.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    const control::Bucket& bucket = BucketOf(sample);
    const models::LatentGeometry geometry = family_.Geometry(bucket.height, bucket.width);
    // Mean and deviation together, for one message.
    at::Tensor posterior =
        at::empty({2, geometry.channels, geometry.height, geometry.width}, models::AccumulationType(family_.dtype()));
    if (sample % ranks == groups_.all.rank() && status.ok()) {
      const absl::StatusOr<models::LatentPosterior> own = EncodePicture(sample);
      status.Update(own.status());
      if (own.ok()) posterior.copy_(at::cat({own->mean, own->deviation}));
    }
    encoded[i].mean = posterior[0];
    encoded[i].deviation = posterior[1];
  }
  const at::Tensor ok = at::full({1}, status.ok() ? 1 : 0, at::kLong);
  if (!groups_.all.AllGather(ok, std::vector<int64_t>(static_cast<size_t>(ranks), 1)).all().item<bool>()) {
    return status.ok() ? absl::AbortedError("another rank could not read a picture") : status;
  }
  for (size_t i = 0; i < encoded.size(); ++i) {
    const auto root = static_cast<int>((first + static_cast<int64_t>(i)) % ranks);
    groups_.all.Broadcast(encoded[i].mean, root);
    groups_.all.Broadcast(encoded[i].deviation, root);
  }
  return absl::OkStatus();
}

absl::StatusOr<models::LatentPosterior> TrainingSamples::EncodePicture(int64_t sample) {
  ASSIGN_OR_RETURN(const control::Image image, control::LoadTrainingPicture(SampleOf(sample), BucketOf(sample)));
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  return family_.EncodeImage(PixelsOf(image), {.attention = attention, .tensor = one, .world = one});
}

absl::StatusOr<models::ConditioningRow> TrainingSamples::EncodeCaption(const std::string& caption,
                                                                       const control::Bucket& bucket) {
  absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("encoded by the first rank");
  if (groups_.model.world.rank() == 0) {
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    encoded = family_.Encode({.prompt = caption,
                              .options = {},
                              .clean_caption = options_.clean_caption,
                              .max_sequence_length = options_.max_sequence_length,
                              .guidance_scale = options_.guidance_scale,
                              .height = bucket.height,
                              .width = bucket.width},
                             {.attention = attention, .tensor = one, .world = one});
  }
  if (groups_.model.world.size() > 1) {
    encoded = BroadcastPrompt(std::move(encoded), groups_.model.control, groups_.model.world, family_.device());
  }
  if (!encoded.ok()) return encoded.status();
  return OnHost(std::move(encoded->guidance.branches.back().row));
}

at::Tensor TrainingSamples::Latents(const SampleKey& visit) const {
  const Encoded& encoded = encoded_[Index(visit.sample)];
  const at::Tensor noise =
      NormalOf(StreamOf(visit, NoisePurpose::kAutoencoderSample), encoded.mean.sizes(), encoded.mean.scalar_type());
  return encoded.mean + encoded.deviation * noise;
}

models::ConditioningRow TrainingSamples::NoCaption(int64_t sample) const {
  return OnDevice(no_caption_[Index(SampleOf(sample).bucket)]);
}

models::ConditioningRow TrainingSamples::OnDevice(const models::ConditioningRow& row) const {
  models::ConditioningRow moved = row;
  if (moved.text.defined()) moved.text = moved.text.to(family_.device());
  for (at::Tensor& extra : moved.extras) extra = extra.to(family_.device());
  return moved;
}

}  // namespace tessera::runtime
