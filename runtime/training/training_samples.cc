#include "runtime/training/training_samples.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/precision.h"
#include "runtime/engine/prompt_broadcast.h"
#include "runtime/training/checkpoints/agreement.h"
#include "runtime/training/data/content_cache.h"

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

constexpr char kText[] = "text";

NamedTensors TensorsOfRow(const models::ConditioningRow& row) {
  NamedTensors tensors;
  if (row.text.defined()) tensors[kText] = row.text;
  for (size_t i = 0; i < row.extras.size(); ++i) tensors[absl::StrCat(i)] = row.extras[i];
  return tensors;
}

models::ConditioningRow RowOf(const NamedTensors& tensors, at::Device device) {
  models::ConditioningRow row;
  if (const auto text = tensors.find(kText); text != tensors.end()) row.text = text->second.to(device);
  for (auto extra = tensors.find("0"); extra != tensors.end(); extra = tensors.find(absl::StrCat(row.extras.size()))) {
    row.extras.push_back(extra->second.to(device));
  }
  return row;
}

}  // namespace

TrainingSamples::TrainingSamples(control::TrainingSet set, models::Family& family, const TrainingGroups& groups,
                                 SampleOptions options)
    : set_(std::move(set)), family_(family), groups_(groups), options_(std::move(options)), cache_(options_.cache) {}

absl::Status TrainingSamples::Prepare(int64_t most) {
  warnings_.clear();
  if (no_caption_.empty()) {
    const bool cached = std::ranges::any_of(set_.samples, &control::TrainingSample::cache_text_embeddings);
    for (const control::Bucket& bucket : set_.buckets) {
      ASSIGN_OR_RETURN(models::EncodedPrompt encoded, EncodeCaption("", bucket, cached));
      no_caption_.push_back(OnHost(std::move(encoded.guidance.branches.back().row)));
    }
  }
  const int64_t first = prepared();
  std::vector<Encoded> encoded(static_cast<size_t>(std::min(most, count() - first)));
  RETURN_IF_ERROR(EncodePictures(first, encoded));
  for (size_t i = 0; i < encoded.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    ASSIGN_OR_RETURN(models::EncodedPrompt caption,
                     EncodeCaption(SampleOf(sample).caption, BucketOf(sample), SampleOf(sample).cache_text_embeddings));
    cached_captions_ += caption.cached;
    encoded[i].caption = OnHost(std::move(caption.guidance.branches.back().row));
  }
  std::ranges::move(encoded, std::back_inserter(encoded_));
  for (std::string& warning : GatherTexts(cache_.TakeWarning(), groups_.all)) {
    if (!warning.empty() && std::ranges::find(warnings_, warning) == warnings_.end()) {
      warnings_.push_back(std::move(warning));
    }
  }
  return absl::OkStatus();
}

absl::Status TrainingSamples::EncodePictures(int64_t first, std::vector<Encoded>& encoded) {
  const int ranks = groups_.all.size();
  const int64_t cached_before = cached_pictures_;
  absl::Status status;
  for (size_t i = 0; i < encoded.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    const control::Bucket& bucket = BucketOf(sample);
    const models::LatentGeometry geometry = family_.Geometry(bucket.height, bucket.width);
    // Mean and deviation together, for one message.
    at::Tensor posterior =
        at::empty({2, geometry.channels, geometry.height, geometry.width}, models::AccumulationType(family_.dtype()));
    if (sample % ranks == groups_.all.rank() && status.ok()) {
      const absl::StatusOr<at::Tensor> own = PosteriorOf(sample, posterior.sizes());
      status.Update(own.status());
      if (own.ok()) posterior.copy_(*own);
    }
    encoded[i].mean = posterior[0];
    encoded[i].deviation = posterior[1];
  }
  RETURN_IF_ERROR(Agree(status, groups_.all));
  for (size_t i = 0; i < encoded.size(); ++i) {
    const auto root = static_cast<int>((first + static_cast<int64_t>(i)) % ranks);
    groups_.all.Broadcast(encoded[i].mean, root);
    groups_.all.Broadcast(encoded[i].deviation, root);
  }
  if (ranks > 1) {
    const at::Tensor cached = at::full({1}, static_cast<double>(cached_pictures_ - cached_before), at::kDouble);
    groups_.all.Sum(cached, cached);
    cached_pictures_ = cached_before + static_cast<int64_t>(cached.item<double>());
  }
  return absl::OkStatus();
}

std::vector<std::string> TrainingSamples::KeyOf(const char* kind, const std::string& encoder,
                                                const control::Bucket& bucket) const {
  return {kind, encoder, control::BucketText(bucket), c10::toString(family_.dtype()),
          c10::DeviceTypeName(family_.device().type())};
}

absl::StatusOr<at::Tensor> TrainingSamples::PosteriorOf(int64_t sample, at::IntArrayRef shape) {
  if (!SampleOf(sample).cache_latents_to_disk) return EncodePicture(sample);
  std::vector<std::string> parts = KeyOf("latents 2", options_.base.autoencoder, BucketOf(sample));
  parts.push_back(SampleOf(sample).digest);
  const std::string key = ContentKey(parts);
  constexpr char kPosterior[] = "posterior";
  if (const std::optional<NamedTensors> found = cache_.Find(key)) {
    const auto posterior = found->find(kPosterior);
    if (posterior != found->end() && posterior->second.sizes() == shape &&
        posterior->second.scalar_type() == models::AccumulationType(family_.dtype())) {
      ++cached_pictures_;
      return posterior->second;
    }
  }
  absl::StatusOr<at::Tensor> posterior = EncodePicture(sample);
  if (posterior.ok()) cache_.Keep(key, {{kPosterior, *posterior}});
  return posterior;
}

absl::StatusOr<at::Tensor> TrainingSamples::EncodePicture(int64_t sample) {
  ASSIGN_OR_RETURN(const control::Image image, control::LoadTrainingPicture(SampleOf(sample), BucketOf(sample)));
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  ASSIGN_OR_RETURN(const models::LatentPosterior posterior,
                   family_.EncodeImage(PixelsOf(image), {.attention = attention, .tensor = one, .world = one}));
  return at::cat({posterior.mean, posterior.deviation}).cpu();
}

absl::StatusOr<models::EncodedPrompt> TrainingSamples::EncodeCaption(const std::string& caption,
                                                                     const control::Bucket& bucket, bool cached) {
  absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("encoded by the first rank");
  if (groups_.model.world.rank() == 0) {
    std::vector<std::string> parts = KeyOf("text 1", options_.base.text, bucket);
    parts.insert(parts.end(), {caption, absl::StrCat(options_.max_sequence_length),
                               absl::StrCat(absl::Hex(std::bit_cast<uint64_t>(options_.guidance_scale))),
                               options_.clean_caption ? "clean" : "as it is"});
    const std::string key = ContentKey(parts);
    const std::optional<NamedTensors> found = cached ? cache_.Find(key) : std::nullopt;
    if (found) {
      encoded =
          models::EncodedPrompt{.guidance = {.branches = {{.row = RowOf(*found, family_.device())}}}, .cached = true};
    } else {
      encoded = EncodeOnThisRank(caption, bucket);
      if (encoded.ok() && cached) cache_.Keep(key, TensorsOfRow(encoded->guidance.branches.back().row));
    }
  }
  if (groups_.model.world.size() > 1) {
    encoded = BroadcastPrompt(std::move(encoded), groups_.model.control, groups_.model.world, family_.device());
  }
  return encoded;
}

absl::StatusOr<models::EncodedPrompt> TrainingSamples::EncodeOnThisRank(const std::string& caption,
                                                                        const control::Bucket& bucket) {
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  absl::StatusOr<models::EncodedPrompt> encoded = family_.Encode({.prompt = caption,
                                                                  .options = {},
                                                                  .clean_caption = options_.clean_caption,
                                                                  .max_sequence_length = options_.max_sequence_length,
                                                                  .guidance_scale = options_.guidance_scale,
                                                                  .height = bucket.height,
                                                                  .width = bucket.width},
                                                                 {.attention = attention, .tensor = one, .world = one});
  if (encoded.ok()) encoded->cached = false;  // says of captions whether the disk had them
  return encoded;
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
