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
#include "control/pictures/reference_size.h"
#include "models/families/prompt_request.h"
#include "models/precision.h"
#include "models/text_encoders/picture_processor.h"
#include "runtime/denoising/picture_inputs.h"
#include "runtime/device/device.h"
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
constexpr char kPosterior[] = "posterior";  // of an image, or the mean of a picture at which the model looks
constexpr char kWarning[] = "warning";      // about a caption, in UTF-8
// Separates a rank's reasons by picture; no path contains NUL.
constexpr absl::string_view kEnd("\0", 1);

bool IsAlike(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() && one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type();
}

bool AreAlike(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, IsAlike);
}

// For keys, whose numbers are raised when the enumerators' are.
std::string FitText(control::ReferenceFit fit) { return absl::StrCat("fit ", static_cast<int>(fit)); }

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

bool TrainingSamples::Wanted::any() const {
  const auto on_disk = [](const std::string& key) { return !key.empty(); };
  return std::ranges::any_of(pictures, on_disk) || on_disk(caption) || on_disk(no_caption);
}

absl::Status TrainingSamples::Prepare(int64_t most) {
  warnings_.clear();
  family_.HoldEncoders(true);
  if (no_caption_.empty() && !options_.prompts_hold_pictures) {
    const bool cached = std::ranges::any_of(set_.samples, &control::TrainingSample::cache_text_embeddings);
    for (const control::Bucket& bucket : set_.buckets) {
      ASSIGN_OR_RETURN(models::EncodedPrompt encoded,
                       EncodeCaption({.text = "", .bucket = bucket, .pictures = {}, .cached = cached}));
      no_caption_.push_back(OnHost(std::move(encoded.guidance.branches.back().row)));
    }
  }
  const int64_t first = prepared();
  std::vector<std::vector<at::Tensor>> pictures(static_cast<size_t>(std::min(most, count() - first)));
  RETURN_IF_ERROR(EncodePictures(first, pictures));
  for (const std::vector<at::Tensor>& of_sample : pictures) {
    if (!of_sample.empty()) RETURN_IF_ERROR(PrepareCaption(prepared(), of_sample));
    ++prepared_;
  }
  for (std::string& warning : GatherTexts(cache_.TakeWarning(), groups_.all)) {
    if (!warning.empty() && std::ranges::find(warnings_, warning) == warnings_.end()) {
      warnings_.push_back(std::move(warning));
    }
  }
  if (prepared() < count()) return absl::OkStatus();
  RETURN_IF_ERROR(LeaveOutUnusable());
  RETURN_IF_ERROR(WarnOfCutCaptions());
  ReleaseEncoders();
  return absl::OkStatus();
}

void TrainingSamples::ReleaseEncoders() {
  family_.HoldEncoders(false);
  if (!family_.device().is_cpu()) ReleaseDeviceMemory(family_.device());
}

absl::Status TrainingSamples::PrepareCaption(int64_t sample, const std::vector<at::Tensor>& pictures) {
  ASSIGN_OR_RETURN(models::EncodedPrompt caption, EncodeCaption(CaptionOf(sample)));
  cached_captions_ += caption.cached;
  if (!caption.warnings.empty()) cut_captions_.push_back(sample);
  Encoded encoded{.pictures = pictures,
                  .caption = OnHost(std::move(caption.guidance.branches.back().row)),
                  .no_caption = std::nullopt};
  if (HoldsNoCaption(sample)) {
    ASSIGN_OR_RETURN(models::EncodedPrompt none, EncodeCaption(NoCaptionOf(sample)));
    encoded.no_caption = OnHost(std::move(none.guidance.branches.back().row));
  }
  Hold(sample, std::move(encoded));
  return absl::OkStatus();
}

control::Bucket TrainingSamples::ReadSizeOf(const control::ControlPicture& picture) const {
  const absl::StatusOr<control::ReferenceSize> size = control::SizeOfReference(options_.references, picture.size);
  TORCH_CHECK(size.ok(), picture.path, ": the picture", std::string(size.status().message()));
  return {.width = size->read.width, .height = size->read.height};
}

bool TrainingSamples::HoldsNoCaption(int64_t sample) const {
  return options_.prompts_hold_pictures && SampleOf(sample).caption_dropout_rate > 0;
}

TrainingSamples::CaptionSource TrainingSamples::CaptionOf(int64_t sample) const {
  const control::TrainingSample& of = SampleOf(sample);
  return {.text = of.caption,
          .bucket = BucketOf(sample),
          .pictures = options_.prompts_hold_pictures ? ControlsOf(sample) : absl::Span<const control::ControlPicture>(),
          .cached = of.cache_text_embeddings};
}

TrainingSamples::CaptionSource TrainingSamples::NoCaptionOf(int64_t sample) const {
  CaptionSource source = CaptionOf(sample);
  source.text = "";
  return source;
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
  for (size_t i = 0; i < no_caption_.size(); ++i) {
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
  ASSIGN_OR_RETURN(const models::EncodedPrompt caption, EncodeCaption(CaptionOf(shown)));
  warnings_.push_back(control::CutCaptionsText(pictures, absl::StrJoin(caption.warnings, "; ")));
  cut_captions_ = {};
  return absl::OkStatus();
}

std::vector<at::Tensor> TrainingSamples::EmptyPictures(int64_t sample) const {
  const auto empty = [this](int64_t count, const control::Bucket& size) {
    const models::LatentGeometry geometry = family_.Geometry(size.height, size.width);
    return at::empty({count, geometry.channels, geometry.height, geometry.width},
                     models::AccumulationType(family_.dtype()));
  };
  std::vector<at::Tensor> pictures = {empty(2, BucketOf(sample))};
  for (const control::ControlPicture& control : ControlsOf(sample)) pictures.push_back(empty(1, ReadSizeOf(control)));
  return pictures;
}

absl::Status TrainingSamples::EncodePictures(int64_t first, std::vector<std::vector<at::Tensor>>& pictures) {
  const int ranks = groups_.all.size();
  const int64_t cached_before = cached_pictures_;
  absl::Status status;
  std::vector<std::string> unusable(pictures.size());  // reasons why this rank's images are left out
  for (size_t i = 0; i < pictures.size() && status.ok(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    if (sample % ranks != groups_.all.rank()) continue;
    absl::Status loaded;
    const absl::StatusOr<std::vector<at::Tensor>> own = PicturesOf(sample, loaded);
    if (!loaded.ok() && SampleOf(sample).bad_images == control::BadImages::kSkip) {
      unusable[i] = std::string(loaded.message());
    } else if (own.ok()) {
      pictures[i] = EmptyPictures(sample);
      for (size_t k = 0; k < own->size(); ++k) pictures[i][k].copy_((*own)[k]);
    } else {
      status = loaded.ok() ? own.status() : control::RefusedSinceTheScan(loaded);
    }
  }
  RETURN_IF_ERROR(Agree(status, groups_.all));
  std::vector<std::vector<std::string>> of_ranks;
  for (const std::string& reasons : GatherTexts(absl::StrJoin(unusable, kEnd), groups_.all)) {
    of_ranks.push_back(absl::StrSplit(reasons, kEnd));
  }
  for (size_t i = 0; i < pictures.size(); ++i) {
    const int64_t sample = first + static_cast<int64_t>(i);
    const int rank = static_cast<int>(sample % ranks);
    if (const std::string& reason = of_ranks[static_cast<size_t>(rank)][i]; !reason.empty()) {
      unusable_.push_back(control::LeftOut(SampleOf(sample).path, reason));
      continue;
    }
    if (rank != groups_.all.rank()) pictures[i] = EmptyPictures(sample);
    for (const at::Tensor& picture : pictures[i]) groups_.all.Broadcast(picture, rank);
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
std::vector<std::string> TrainingSamples::PictureKeys(int64_t sample) const {
  std::vector<std::string> parts = KeyOf("latents 3", options_.base.autoencoder, BucketOf(sample));
  parts.push_back(control::DigestText(SampleOf(sample).digest));
  std::vector<std::string> keys = {ContentKey(parts)};
  for (const control::ControlPicture& control : ControlsOf(sample)) {
    parts = KeyOf("reference 1", options_.base.autoencoder, ReadSizeOf(control));
    parts.insert(parts.end(), {FitText(options_.references), control::DigestText(control.digest)});
    keys.push_back(ContentKey(parts));
  }
  return keys;
}

std::string TrainingSamples::CaptionKey(const CaptionSource& caption) const {
  std::vector<std::string> parts = KeyOf("text 2", options_.base.text, caption.bucket);
  parts.insert(parts.end(), {caption.text, absl::StrCat(options_.max_sequence_length),
                             absl::StrCat(absl::Hex(std::bit_cast<uint64_t>(options_.guidance_scale))),
                             options_.clean_caption ? "clean" : "as it is"});
  for (const control::ControlPicture& picture : caption.pictures) {
    parts.insert(parts.end(), {FitText(options_.references), control::DigestText(picture.digest)});
  }
  return ContentKey(parts);
}

at::Tensor TrainingSamples::FindPicture(const std::string& key, const at::Tensor& like) {
  const std::optional<NamedTensors> found = key.empty() ? std::nullopt : cache_.Find(key);
  if (!found || !found->contains(kPosterior) || !IsAlike(found->at(kPosterior), like)) return {};
  return found->at(kPosterior);
}

absl::StatusOr<std::vector<at::Tensor>> TrainingSamples::PicturesOf(int64_t sample, absl::Status& loaded) {
  const absl::Span<const control::ControlPicture> controls = ControlsOf(sample);
  const std::vector<at::Tensor> like = EmptyPictures(sample);
  const std::vector<std::string> keys = WantedOf(sample).pictures;
  std::vector<at::Tensor> pictures;
  bool all_cached = true;
  for (size_t i = 0; i < like.size(); ++i) {
    if (at::Tensor found = FindPicture(keys[i], like[i]); found.defined()) {
      pictures.push_back(std::move(found));
      continue;
    }
    all_cached = false;
    const bool is_image = i == 0;
    const std::string& path = is_image ? SampleOf(sample).path : controls[i - 1].path;
    const absl::StatusOr<control::Frames> frames =
        is_image ? control::LoadTrainingPicture(SampleOf(sample), BucketOf(sample))
                 : control::LoadControlPicture(controls[i - 1]);
    loaded = frames.status();
    RETURN_IF_ERROR(loaded);
    const absl::StatusOr<at::Tensor> encoded = is_image ? EncodePicture(*frames) : EncodeReference(*frames);
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(), absl::StrCat(path, ": ", encoded.status().message()));
    }
    if (!keys[i].empty()) cache_.Keep(keys[i], {{kPosterior, *encoded}});
    pictures.push_back(*encoded);
  }
  cached_pictures_ += all_cached;
  return pictures;
}

absl::StatusOr<at::Tensor> TrainingSamples::EncodePicture(const control::Frames& image) {
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  ASSIGN_OR_RETURN(const models::LatentPosterior posterior,
                   family_.EncodeImage(PixelsOf(image), {.attention = attention, .tensor = one, .world = one}));
  return at::cat({posterior.mean, posterior.deviation}).cpu();
}

absl::StatusOr<at::Tensor> TrainingSamples::EncodeReference(const control::Frames& picture) {
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  ASSIGN_OR_RETURN(const control::Frames fitted, control::FitReference(options_.references, picture));
  ASSIGN_OR_RETURN(const at::Tensor latents, ReferenceLatents(PictureValues(fitted), family_,
                                                              {.attention = attention, .tensor = one, .world = one}));
  return latents.cpu();
}

absl::StatusOr<models::EncodedPrompt> TrainingSamples::EncodeCaption(const CaptionSource& caption) {
  absl::StatusOr<models::EncodedPrompt> encoded = absl::UnknownError("encoded by the first rank");
  if (groups_.model.world.rank() == 0) {
    const std::string key = CaptionKey(caption);
    const std::optional<NamedTensors> found = caption.cached ? cache_.Find(key) : std::nullopt;
    if (found) {
      encoded = CaptionIn(*found, family_.device());
    } else {
      encoded = EncodeOnThisRank(caption);
      if (encoded.ok() && caption.cached) cache_.Keep(key, TensorsOfCaption(*encoded));
    }
  }
  if (groups_.model.world.size() > 1) {
    encoded = BroadcastPrompt(std::move(encoded), groups_.model.control, groups_.model.world, family_.device());
  }
  return encoded;
}

absl::StatusOr<models::EncodedPrompt> TrainingSamples::EncodeOnThisRank(const CaptionSource& caption) {
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  std::vector<control::Frames> pictures;
  for (const control::ControlPicture& picture : caption.pictures) {
    ASSIGN_OR_RETURN(const control::Frames frames, control::LoadControlPicture(picture));
    ASSIGN_OR_RETURN(control::Frames fitted, control::FitPromptPicture(options_.references, frames));
    pictures.push_back(std::move(fitted));
  }
  absl::StatusOr<models::EncodedPrompt> encoded =
      family_.Encode({.prompt = caption.text,
                      .options = {},
                      .clean_caption = options_.clean_caption,
                      .max_sequence_length = options_.max_sequence_length,
                      .guidance_scale = options_.guidance_scale,
                      .height = caption.bucket.height,
                      .width = caption.bucket.width,
                      .pictures = models::MakePromptPictures(std::move(pictures))},
                     {.attention = attention, .tensor = one, .world = one});
  if (encoded.ok()) encoded->cached = false;  // for captions, `cached` means that the disk had them
  return encoded;
}

void TrainingSamples::Hold(int64_t sample, Encoded encoded) {
  const Wanted wanted = WantedOf(sample);
  const std::optional<ContentCache> folder = FolderOf({wanted});
  const auto is_on_disk = [&folder](const std::string& key) { return folder && folder->Has(key); };
  for (size_t i = 0; i < wanted.pictures.size(); ++i) {
    if (is_on_disk(wanted.pictures[i])) continue;
    std::vector<at::Tensor>& held = held_[sample].pictures;
    held.resize(wanted.pictures.size());
    held[i] = encoded.pictures[i];
  }
  if (!is_on_disk(wanted.caption)) held_[sample].caption = std::move(encoded.caption);
  if (encoded.no_caption && !is_on_disk(wanted.no_caption)) held_[sample].no_caption = std::move(encoded.no_caption);
}

TrainingSamples::Wanted TrainingSamples::WantedOf(int64_t sample) const {
  const control::TrainingSample& of = SampleOf(sample);
  Wanted wanted{.sample = sample, .pictures = {}, .caption = "", .no_caption = ""};
  wanted.pictures =
      of.cache_latents_to_disk ? PictureKeys(sample) : std::vector<std::string>(1 + ControlsOf(sample).size());
  if (!of.cache_text_embeddings) return wanted;
  wanted.caption = CaptionKey(CaptionOf(sample));
  if (HoldsNoCaption(sample)) wanted.no_caption = CaptionKey(NoCaptionOf(sample));
  return wanted;
}

bool TrainingSamples::LacksCaption(int64_t sample, const Encoded& encoded) const {
  return !encoded.caption || (HoldsNoCaption(sample) && !encoded.no_caption);
}

std::optional<ContentCache> TrainingSamples::FolderOf(const std::vector<Wanted>& wanted) {
  const bool any = std::ranges::any_of(wanted, &Wanted::any);
  return any ? cache_.folder() : std::nullopt;
}

TrainingSamples::Window TrainingSamples::Read(const std::optional<ContentCache>& folder,
                                              const std::vector<Wanted>& wanted) {
  Window window;
  for (const Wanted& each : wanted) {
    Encoded& encoded = window[each.sample];
    encoded.pictures.resize(each.pictures.size());
    if (!folder) continue;
    const auto find = [&](const std::string& key) {
      const std::optional<std::string> bytes = folder->Find(key);
      return bytes ? TensorsOf(*bytes) : std::nullopt;
    };
    for (size_t i = 0; i < each.pictures.size(); ++i) {
      const std::optional<NamedTensors> found = find(each.pictures[i]);
      if (found && found->contains(kPosterior)) encoded.pictures[i] = found->at(kPosterior);
    }
    if (const std::optional<NamedTensors> found = find(each.caption)) encoded.caption = RowOf(*found, at::kCPU);
    if (const std::optional<NamedTensors> found = find(each.no_caption)) encoded.no_caption = RowOf(*found, at::kCPU);
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
      Encoded& encoded = window[sample];
      for (size_t i = 0; i < held->second.pictures.size(); ++i) {
        if (held->second.pictures[i].defined()) encoded.pictures[i] = held->second.pictures[i];
      }
      if (held->second.caption) encoded.caption = held->second.caption;
      if (held->second.no_caption) encoded.no_caption = held->second.no_caption;
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
    if (!AreAlike(encoded.pictures, EmptyPictures(sample))) pictures.push_back(sample);
    captions = captions || LacksCaption(sample, encoded);
  }
  const at::Tensor missing = at::full({1}, pictures.empty() && !captions ? 0.0 : 1.0, at::kDouble);
  if (groups_.all.size() > 1) groups_.all.Sum(missing, missing);
  if (missing.item<double>() == 0) return absl::OkStatus();
  absl::Status status;
  for (const int64_t sample : pictures) {
    absl::Status loaded;
    absl::StatusOr<std::vector<at::Tensor>> encoded = PicturesOf(sample, loaded);
    status.Update(encoded.status());
    if (encoded.ok()) window[sample].pictures = *std::move(encoded);
  }
  status.Update(EncodeMissingCaptions(samples, window));
  return Agree(status, groups_.all);
}

absl::Status TrainingSamples::EncodeMissingCaptions(const std::vector<int64_t>& samples, Window& window) {
  std::vector<int64_t> own;
  for (const auto& [sample, encoded] : window) {
    if (LacksCaption(sample, encoded)) own.push_back(sample);
  }
  std::set<std::string> missing;  // on any rank, so that all ranks of a replica encode the same ones
  for (const std::string& names : GatherTexts(absl::StrJoin(own, ","), groups_.all)) {
    for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) missing.emplace(name);
  }
  for (const int64_t sample : std::set<int64_t>(samples.begin(), samples.end())) {
    if (!missing.contains(absl::StrCat(sample))) continue;
    ASSIGN_OR_RETURN(models::EncodedPrompt caption, EncodeCaption(CaptionOf(sample)));
    window[sample].caption = OnHost(std::move(caption.guidance.branches.back().row));
    if (!HoldsNoCaption(sample)) continue;
    ASSIGN_OR_RETURN(models::EncodedPrompt none, EncodeCaption(NoCaptionOf(sample)));
    window[sample].no_caption = OnHost(std::move(none.guidance.branches.back().row));
  }
  return absl::OkStatus();
}

at::Tensor TrainingSamples::Latents(const SampleKey& visit) const {
  const at::Tensor& posterior = window_.at(visit.sample).pictures.front();
  const at::Tensor mean = posterior[0], deviation = posterior[1];
  const at::Tensor noise =
      NormalOf(StreamOf(visit, NoisePurpose::kAutoencoderSample), mean.sizes(), mean.scalar_type());
  return mean + deviation * noise;
}

SampleReferences TrainingSamples::References(int64_t sample) const {
  SampleReferences references;
  const Encoded& encoded = window_.at(sample);
  const absl::Span<const control::ControlPicture> controls = ControlsOf(sample);
  for (size_t i = 0; i < controls.size(); ++i) {
    const control::Bucket size = ReadSizeOf(controls[i]);
    references.patches.push_back(ReferencePatches(encoded.pictures[i + 1], family_));
    references.grids.push_back(family_.Geometry(size.height, size.width).grid);
  }
  return references;
}

models::ConditioningRow TrainingSamples::NoCaption(int64_t sample) const {
  if (HoldsNoCaption(sample)) return OnDevice(*window_.at(sample).no_caption);
  return OnDevice(no_caption_[Index(SampleOf(sample).bucket)]);
}

models::ConditioningRow TrainingSamples::OnDevice(const models::ConditioningRow& row) const {
  models::ConditioningRow moved = row;
  if (moved.text.defined()) moved.text = moved.text.to(family_.device());
  for (at::Tensor& extra : moved.extras) extra = extra.to(family_.device());
  return moved;
}

}  // namespace tessera::runtime
