#include "runtime/training/training_samples.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "models/families/prompt_request.h"
#include "models/precision.h"
#include "runtime/group/prompt_broadcast.h"
#include "runtime/training/checkpoints/agreement.h"
#include "runtime/training/data/content_cache.h"

namespace tessera::runtime {
namespace {

// Pixels as [1, 3, height, width] in [-1, 1].
at::Tensor PixelsOf(const control::Frames& image) {
  const at::Tensor rgb =
      at::from_blob(const_cast<uint8_t*>(image.bytes.data()), {image.height, image.width, 3}, at::kByte);
  return rgb.permute({2, 0, 1}).to(at::kDouble).div(127.5).sub(1).unsqueeze(0);
}

models::ConditioningRow OnHost(models::ConditioningRow row) {
  if (row.text.defined()) row.text = row.text.cpu();
  for (at::Tensor& extra : row.extras) extra = extra.cpu();
  return row;
}

constexpr char kText[] = "text";
constexpr char kPosterior[] = "posterior";
constexpr char kWarning[] = "warning";  // about a caption, in UTF-8
// Separates a rank's reasons by picture; no path contains NUL.
constexpr absl::string_view kEnd("\0", 1);

bool IsAlike(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() && one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type();
}

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

NamedTensors TensorsOfCaption(const models::EncodedPrompt& encoded) {
  NamedTensors tensors = TensorsOfRow(encoded.guidance.branches.back().row);
  const std::string warning = absl::StrJoin(encoded.warnings, "; ");
  if (!warning.empty()) {
    tensors[kWarning] =
        at::from_blob(const_cast<char*>(warning.data()), {static_cast<int64_t>(warning.size())}, at::kByte).clone();
  }
  return tensors;
}

models::EncodedPrompt CaptionIn(const NamedTensors& tensors, at::Device device) {
  models::EncodedPrompt encoded{.guidance = {.branches = {{.row = RowOf(tensors, device)}}}, .cached = true};
  if (const auto warning = tensors.find(kWarning);
      warning != tensors.end() && warning->second.scalar_type() == at::kByte) {
    encoded.warnings.emplace_back(static_cast<const char*>(warning->second.const_data_ptr()),
                                  static_cast<size_t>(warning->second.numel()));
  }
  return encoded;
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
  std::vector<at::Tensor> posteriors(static_cast<size_t>(std::min(most, count() - first)));
  RETURN_IF_ERROR(EncodePictures(first, posteriors));
  for (const at::Tensor& posterior : posteriors) {
    if (posterior.defined()) RETURN_IF_ERROR(PrepareCaption(prepared(), posterior));
    ++prepared_;
  }
  for (std::string& warning : GatherTexts(cache_.TakeWarning(), groups_.all)) {
    if (!warning.empty() && std::ranges::find(warnings_, warning) == warnings_.end()) {
      warnings_.push_back(std::move(warning));
    }
  }
  if (prepared() < count()) return absl::OkStatus();
  RETURN_IF_ERROR(LeaveOutUnusable());
  return WarnOfCutCaptions();
}

absl::Status TrainingSamples::PrepareCaption(int64_t sample, const at::Tensor& posterior) {
  const control::TrainingSample& of = SampleOf(sample);
  ASSIGN_OR_RETURN(models::EncodedPrompt caption,
                   EncodeCaption(of.caption, BucketOf(sample), of.cache_text_embeddings));
  cached_captions_ += caption.cached;
  if (!caption.warnings.empty()) cut_captions_.push_back(sample);
  Hold(sample, posterior, OnHost(std::move(caption.guidance.branches.back().row)));
  return absl::OkStatus();
}

absl::Status TrainingSamples::LeaveOutUnusable() {
  if (unusable_.empty()) return absl::OkStatus();
  std::set<std::string> paths;
  std::erase_if(unusable_, [&](const control::LeftOutImage& image) { return !paths.insert(image.path).second; });
  const std::vector<control::Bucket> buckets = set_.buckets;
  ASSIGN_OR_RETURN(const std::vector<int64_t> removed, set_.LeaveOut(unusable_));
  prepared_ = count();
  const auto is_removed = [&](int64_t sample) { return std::ranges::binary_search(removed, sample); };
  const auto new_place = [&](int64_t sample) {
    return sample - (std::ranges::lower_bound(removed, sample) - removed.begin());
  };
  Window held;
  for (auto& [sample, encoded] : held_) {
    if (!is_removed(sample)) held.emplace(new_place(sample), std::move(encoded));
  }
  held_ = std::move(held);
  std::erase_if(cut_captions_, is_removed);
  std::ranges::transform(cut_captions_, cut_captions_.begin(), new_place);
  std::vector<models::ConditioningRow> no_caption;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (std::ranges::binary_search(set_.buckets, buckets[i])) no_caption.push_back(std::move(no_caption_[i]));
  }
  no_caption_ = std::move(no_caption);
  left_out_ = control::LeftOutText(unusable_);
  warnings_.push_back(left_out_);
  unusable_ = {};
  return absl::OkStatus();
}

absl::Status TrainingSamples::WarnOfCutCaptions() {
  if (cut_captions_.empty()) return absl::OkStatus();
  std::set<std::string_view> named;
  std::vector<std::string> pictures;
  for (const int64_t sample : cut_captions_) {
    const std::string& path = SampleOf(sample).path;
    if (named.insert(path).second) pictures.push_back(path);
  }
  const int64_t shown = cut_captions_.front();
  ASSIGN_OR_RETURN(const models::EncodedPrompt caption,
                   EncodeCaption(SampleOf(shown).caption, BucketOf(shown), SampleOf(shown).cache_text_embeddings));
  warnings_.push_back(control::CutCaptionsText(pictures, absl::StrJoin(caption.warnings, "; ")));
  cut_captions_ = {};
  return absl::OkStatus();
}

at::Tensor TrainingSamples::EmptyPosterior(int64_t sample) const {
  const control::Bucket& bucket = BucketOf(sample);
  const models::LatentGeometry geometry = family_.Geometry(bucket.height, bucket.width);
  return at::empty({2, geometry.channels, geometry.height, geometry.width}, models::AccumulationType(family_.dtype()));
}

absl::Status TrainingSamples::EncodePictures(int64_t first, std::vector<at::Tensor>& posteriors) {
  const int ranks = groups_.all.size();
  const int64_t cached_before = cached_pictures_;
  absl::Status status;
  std::vector<std::string> unusable(posteriors.size());  // reasons why this rank's pictures are left out
  for (size_t i = 0; i < posteriors.size() && status.ok(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    if (sample % ranks != groups_.all.rank()) continue;
    absl::Status loaded;
    const absl::StatusOr<at::Tensor> own = PosteriorOf(sample, loaded);
    if (!loaded.ok() && SampleOf(sample).bad_images == control::BadImages::kSkip) {
      unusable[i] = std::string(loaded.message());
    } else if (own.ok()) {
      posteriors[i] = EmptyPosterior(sample).copy_(*own);
    } else {
      status = loaded.ok() ? own.status() : control::RefusedSinceTheScan(loaded);
    }
  }
  RETURN_IF_ERROR(Agree(status, groups_.all));
  std::vector<std::vector<std::string>> of_ranks;
  for (const std::string& reasons : GatherTexts(absl::StrJoin(unusable, kEnd), groups_.all)) {
    of_ranks.push_back(absl::StrSplit(reasons, kEnd));
  }
  for (size_t i = 0; i < posteriors.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    const int rank = static_cast<int>(sample % ranks);
    if (const std::string& reason = of_ranks[static_cast<size_t>(rank)][i]; !reason.empty()) {
      unusable_.push_back(control::LeftOut(SampleOf(sample).path, reason));
      continue;
    }
    if (rank != groups_.all.rank()) posteriors[i] = EmptyPosterior(sample);
    groups_.all.Broadcast(posteriors[i], rank);
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

// The key's number is raised when entries of older versions must not be used.
std::string TrainingSamples::PictureKey(int64_t sample) const {
  std::vector<std::string> parts = KeyOf("latents 3", options_.base.autoencoder, BucketOf(sample));
  parts.push_back(control::DigestText(SampleOf(sample).digest));
  return ContentKey(parts);
}

std::string TrainingSamples::CaptionKey(const std::string& caption, const control::Bucket& bucket) const {
  std::vector<std::string> parts = KeyOf("text 2", options_.base.text, bucket);
  parts.insert(parts.end(), {caption, absl::StrCat(options_.max_sequence_length),
                             absl::StrCat(absl::Hex(std::bit_cast<uint64_t>(options_.guidance_scale))),
                             options_.clean_caption ? "clean" : "as it is"});
  return ContentKey(parts);
}

absl::StatusOr<at::Tensor> TrainingSamples::PosteriorOf(int64_t sample, absl::Status& loaded) {
  const std::string key = SampleOf(sample).cache_latents_to_disk ? PictureKey(sample) : "";
  if (const std::optional<NamedTensors> found = key.empty() ? std::nullopt : cache_.Find(key)) {
    const auto posterior = found->find(kPosterior);
    if (posterior != found->end() && IsAlike(posterior->second, EmptyPosterior(sample))) {
      ++cached_pictures_;
      return posterior->second;
    }
  }
  const absl::StatusOr<control::Frames> image = control::LoadTrainingPicture(SampleOf(sample), BucketOf(sample));
  loaded = image.status();
  RETURN_IF_ERROR(loaded);
  absl::StatusOr<at::Tensor> posterior = EncodePicture(*image);
  if (!posterior.ok()) {
    const absl::Status& error = posterior.status();
    return absl::Status(error.code(), absl::StrCat(SampleOf(sample).path, ": ", error.message()));
  }
  if (!key.empty()) cache_.Keep(key, {{kPosterior, *posterior}});
  return posterior;
}

absl::StatusOr<at::Tensor> TrainingSamples::EncodePicture(const control::Frames& image) {
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
    const std::string key = CaptionKey(caption, bucket);
    const std::optional<NamedTensors> found = cached ? cache_.Find(key) : std::nullopt;
    if (found) {
      encoded = CaptionIn(*found, family_.device());
    } else {
      encoded = EncodeOnThisRank(caption, bucket);
      if (encoded.ok() && cached) cache_.Keep(key, TensorsOfCaption(*encoded));
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
  if (encoded.ok()) encoded->cached = false;  // for captions, `cached` means that the disk had them
  return encoded;
}

void TrainingSamples::Hold(int64_t sample, const at::Tensor& posterior, models::ConditioningRow caption) {
  const Wanted wanted = WantedOf(sample);
  const std::optional<ContentCache> folder = FolderOf({wanted});
  if (!folder || !folder->Has(wanted.picture)) held_[sample].posterior = posterior;
  if (!folder || !folder->Has(wanted.caption)) held_[sample].caption = std::move(caption);
}

TrainingSamples::Wanted TrainingSamples::WantedOf(int64_t sample) const {
  const control::TrainingSample& of = SampleOf(sample);
  return {.sample = sample,
          .picture = of.cache_latents_to_disk ? PictureKey(sample) : "",
          .caption = of.cache_text_embeddings ? CaptionKey(of.caption, BucketOf(sample)) : ""};
}

std::optional<ContentCache> TrainingSamples::FolderOf(const std::vector<Wanted>& wanted) {
  const bool any =
      std::ranges::any_of(wanted, [](const Wanted& each) { return !each.picture.empty() || !each.caption.empty(); });
  return any ? cache_.folder() : std::nullopt;
}

TrainingSamples::Window TrainingSamples::Read(const std::optional<ContentCache>& folder,
                                              const std::vector<Wanted>& wanted) {
  Window window;
  for (const Wanted& each : wanted) {
    Encoded& encoded = window[each.sample];
    if (!folder) continue;
    const auto find = [&](const std::string& key) {
      const std::optional<std::string> bytes = folder->Find(key);
      return bytes ? TensorsOf(*bytes) : std::nullopt;
    };
    if (const std::optional<NamedTensors> found = find(each.picture); found && found->contains(kPosterior)) {
      encoded.posterior = found->at(kPosterior);
    }
    if (const std::optional<NamedTensors> found = find(each.caption)) encoded.caption = RowOf(*found, at::kCPU);
  }
  return window;
}

// Takes the samples from the read-ahead, then from the disk or from memory.
TrainingSamples::Window TrainingSamples::Take(const std::vector<int64_t>& samples) {
  Window ahead;
  if (reading_.valid()) ahead = reading_.get();
  std::vector<Wanted> wanted;
  for (const int64_t sample : samples) {
    if (!ahead.contains(sample)) wanted.push_back(WantedOf(sample));
  }
  Window window = Read(FolderOf(wanted), wanted);
  for (const int64_t sample : samples) {
    if (auto read = ahead.extract(sample)) window.insert(std::move(read));  // once: a pass may visit a sample twice
    if (const auto held = held_.find(sample); held != held_.end()) {
      if (held->second.posterior.defined()) window[sample].posterior = held->second.posterior;
      if (held->second.caption) window[sample].caption = held->second.caption;
    }
  }
  return window;
}

void TrainingSamples::ReadAhead(const std::vector<int64_t>& next) {
  if (next.empty()) return;
  std::vector<Wanted> wanted;
  for (const int64_t sample : next) wanted.push_back(WantedOf(sample));
  const std::optional<ContentCache> folder = FolderOf(wanted);
  reading_ = std::async(std::launch::async | std::launch::deferred, Read, folder, std::move(wanted));
}

absl::Status TrainingSamples::Fetch(const std::vector<int64_t>& samples, const std::vector<int64_t>& next) {
  window_ = Window();
  Window window = Take(samples);
  RETURN_IF_ERROR(EncodeMissing(samples, window));
  window_ = std::move(window);
  ReadAhead(next);
  return absl::OkStatus();
}

absl::Status TrainingSamples::EncodeMissing(const std::vector<int64_t>& samples, Window& window) {
  std::vector<int64_t> pictures;
  bool captions = false;
  for (const auto& [sample, encoded] : window) {
    if (!IsAlike(encoded.posterior, EmptyPosterior(sample))) pictures.push_back(sample);
    captions = captions || !encoded.caption;
  }
  const at::Tensor missing = at::full({1}, pictures.empty() && !captions ? 0.0 : 1.0, at::kDouble);
  if (groups_.all.size() > 1) groups_.all.Sum(missing, missing);
  if (missing.item<double>() == 0) return absl::OkStatus();
  absl::Status status;
  for (const int64_t sample : pictures) {
    absl::Status loaded;
    absl::StatusOr<at::Tensor> posterior = PosteriorOf(sample, loaded);
    status.Update(posterior.status());
    if (posterior.ok()) window[sample].posterior = *std::move(posterior);
  }
  status.Update(EncodeMissingCaptions(samples, window));
  return Agree(status, groups_.all);
}

absl::Status TrainingSamples::EncodeMissingCaptions(const std::vector<int64_t>& samples, Window& window) {
  std::vector<int64_t> own;
  for (const auto& [sample, encoded] : window) {
    if (!encoded.caption) own.push_back(sample);
  }
  std::set<std::string> missing;  // on any rank, so that all ranks of a replica encode the same ones
  for (const std::string& names : GatherTexts(absl::StrJoin(own, ","), groups_.all)) {
    for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) missing.emplace(name);
  }
  for (const int64_t sample : std::set<int64_t>(samples.begin(), samples.end())) {
    if (!missing.contains(absl::StrCat(sample))) continue;
    ASSIGN_OR_RETURN(models::EncodedPrompt caption,
                     EncodeCaption(SampleOf(sample).caption, BucketOf(sample), SampleOf(sample).cache_text_embeddings));
    window[sample].caption = OnHost(std::move(caption.guidance.branches.back().row));
  }
  return absl::OkStatus();
}

at::Tensor TrainingSamples::Latents(const SampleKey& visit) const {
  const at::Tensor& posterior = window_.at(visit.sample).posterior;
  const at::Tensor mean = posterior[0], deviation = posterior[1];
  const at::Tensor noise =
      NormalOf(StreamOf(visit, NoisePurpose::kAutoencoderSample), mean.sizes(), mean.scalar_type());
  return mean + deviation * noise;
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
