#include "control/training/dataset.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"
#include "control/pictures/reference_size.h"
#include "control/pictures/resample.h"
#include "control/training/picture_folder.h"

namespace tessera::control {
namespace {

namespace fs = std::filesystem;

constexpr char kControlFileNames[] = "control_file_names";
// Caption files of other tools, which are not read.
constexpr const char* kOtherMetadata[] = {"metadata.csv", "metadata.json", "metadata.parquet"};
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr char kTrigger[] = "[trigger]";
constexpr size_t kMaxMetadataBytes = 256 << 20;
constexpr size_t kMaxLineBytes = 1 << 20;
constexpr size_t kMaxCaptionBytes = 64 << 10;
constexpr size_t kNamed = 3;  // files named in a message

// An image in a folder's listing.
struct ListedImage {
  std::string path;
  absl::StatusOr<std::string> caption;  // an error says why it cannot be used, with the name of its file
};

// Removes the byte order mark that some editors put in front of UTF-8.
std::string_view WithoutByteOrderMark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

// The caption in the text of a file. Errors begin with `name`.
absl::StatusOr<std::string> CaptionOf(const std::string& text, const std::string& name) {
  std::string caption(WithoutByteOrderMark(text));
  absl::StripAsciiWhitespace(&caption);
  if (caption.size() > kMaxCaptionBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the caption has ", caption.size(), " bytes; at most ", kMaxCaptionBytes, " are valid"));
  }
  if (base::FirstInvalidUtf8(caption) < caption.size()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": the caption is not UTF-8"));
  }
  if (absl::StrContains(caption, '\0')) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": the caption has a NUL character"));
  }
  return caption;
}

// The paths of the pictures at which the model looks for an image; an error says why it cannot be used.
using ListedControls = absl::StatusOr<std::vector<std::string>>;

// The listing of a folder.
struct ListedFolder {
  std::vector<ListedImage> images;
  std::vector<ListedControls> controls;  // of each image; empty if no image has any
  std::vector<LeftOutImage> lines;       // lines of metadata.jsonl that name no image
};

// Whether the name is relative and stays within its folder.
bool StaysWithin(const fs::path& name) {
  return name.is_relative() && std::find(name.begin(), name.end(), "..") == name.end();
}

// INVALID_ARGUMENT, which begins with `name`, unless it is the name of a file within the folder.
absl::Status CheckFileName(const std::string& name, const char* field, const std::string& file) {
  const bool has_nul = absl::StrContains(file, '\0');
  if (!has_nul && StaysWithin(file)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": field \"", field, "\" is ", base::QuotedValue(file),
      has_nul ? "; it must not have a NUL character" : "; it must be the name of a file within the folder"));
}

// The pictures that a line of metadata.jsonl lists; empty if it lists none.
ListedControls ControlsOfLine(const std::string& folder, const base::Json& line, const std::string& name) {
  std::vector<std::string> paths;
  const base::Json* const listed = line.Find(kControlFileNames);
  if (listed == nullptr) return paths;
  for (const base::Json& file : listed->items()) {
    if (file.AsString() == nullptr || file.AsString()->empty()) break;
    RETURN_IF_ERROR(CheckFileName(name, kControlFileNames, *file.AsString()));
    paths.push_back((fs::path(folder) / *file.AsString()).string());
  }
  if (!paths.empty() && paths.size() == listed->items().size()) return paths;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": field \"", kControlFileNames, "\" must be a list of names of pictures"));
}

absl::StatusOr<ListedImage> ReadMetadataLine(const std::string& folder, const base::Json& json,
                                             const std::string& name) {
  const base::Json* file = json.Find("file_name");
  const base::Json* text = json.Find("text");
  if (file == nullptr || file->AsString() == nullptr || file->AsString()->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": field \"file_name\" must be the name of an image"));
  }
  RETURN_IF_ERROR(CheckFileName(name, "file_name", *file->AsString()));
  const bool is_text = text != nullptr && text->AsString() != nullptr;
  return ListedImage{
      (fs::path(folder) / *file->AsString()).string(),
      is_text ? CaptionOf(*text->AsString(), name)
              : absl::InvalidArgumentError(absl::StrCat(name, ": field \"text\" must be the caption of the image"))};
}

absl::StatusOr<ListedFolder> ReadMetadata(const std::string& folder) {
  const std::string path = (fs::path(folder) / kMetadata).string();
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, path, kMaxMetadataBytes));
  ListedFolder listed;
  int64_t number = 0;
  const std::string_view unmarked = WithoutByteOrderMark(text);
  listed.images.reserve(static_cast<size_t>(std::ranges::count(unmarked, '\n')) + 1);
  for (const absl::string_view line : absl::StrSplit(absl::string_view(unmarked.data(), unmarked.size()), '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::string name = absl::StrCat(path, " line ", number);
    const absl::StatusOr<base::Json> json = base::ParseJson({line.data(), line.size()}, name, kMaxLineBytes);
    absl::StatusOr<ListedImage> image = json.ok() ? ReadMetadataLine(folder, *json, name) : json.status();
    if (!image.ok()) {
      listed.lines.push_back({name, std::string(image.status().message())});
      continue;
    }
    ListedControls controls = ControlsOfLine(folder, *json, name);
    if (!controls.ok() || !controls->empty()) {
      listed.controls.resize(listed.images.size(), std::vector<std::string>());
      listed.controls.push_back(std::move(controls));
    }
    listed.images.push_back(*std::move(image));
  }
  if (!listed.controls.empty()) listed.controls.resize(listed.images.size(), std::vector<std::string>());
  return listed;
}

// Finds the pictures of control_path for each image. INVALID_ARGUMENT and NOT_FOUND are about the key, whose name the
// message begins with.
absl::Status ListControls(const TrainDataset& dataset, ListedFolder& listed) {
  if (dataset.control_path.empty()) return absl::OkStatus();
  if (!listed.controls.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("control_path is set, and ", kMetadata, " has ", kControlFileNames, ", too; remove one of them"));
  }
  for (size_t i = 0; i < dataset.control_path.size(); ++i) {
    const absl::Status read = PicturesIn(dataset.control_path[i]).status();
    if (!read.ok()) return absl::Status(read.code(), absl::StrCat("control_path[", i, "] ", read.message()));
  }
  std::vector<std::string> images;
  images.reserve(listed.images.size());
  for (const ListedImage& image : listed.images) {
    images.push_back(fs::path(image.path).lexically_relative(fs::path(dataset.folder_path)).string());
  }
  ControlFolders folders(dataset.control_path, images);
  for (size_t i = 0; i < images.size(); ++i) {
    ListedControls pictures = folders.PicturesOf(images[i]);
    if (!pictures.ok()) {
      pictures = absl::Status(pictures.status().code(),
                              absl::StrCat(fs::path(listed.images[i].path).lexically_normal().string(), ": ",
                                           std::string(pictures.status().message())));
    }
    listed.controls.push_back(std::move(pictures));
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT, in words that follow the name of the dataset, if the model looks at no pictures or needs some.
absl::Status CheckControls(const TrainDataset& dataset, const ListedFolder& listed, const ControlRules& rules) {
  if (rules.most == 0) {
    if (listed.controls.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        dataset.control_path.empty() ? absl::StrCat(kControlFileNames, " of ", kMetadata, " is") : "control_path is",
        " set, and the model looks at no pictures; remove it, or train a model that edits pictures"));
  }
  if (!rules.required || !listed.controls.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("control_path is missing, and the model edits pictures; name a folder that has one for each image, "
                   "or list them as ",
                   kControlFileNames, " in ", kMetadata));
}

// The text of the caption file of an image; empty if there is none.
absl::StatusOr<std::string> CaptionFileOf(const fs::path& image, const std::string& extension) {
  fs::path path = image;
  path.replace_extension(absl::StartsWith(extension, ".") ? extension : "." + extension);
  absl::StatusOr<std::string> text = base::ReadWholeFile(path.string(), path.string(), kMaxCaptionBytes);
  if (absl::IsNotFound(text.status())) {
    fs::path other = image;
    other.replace_extension(".json");
    std::error_code ignored;
    if (!fs::exists(other, ignored)) return std::string();
    return absl::InvalidArgumentError(absl::StrCat(other.string(),
                                                   ": captions in JSON are not read; write the caption to ",
                                                   path.string(), ", or leave that file empty for none"));
  }
  if (!text.ok()) return text.status();
  return CaptionOf(*text, path.string());
}

// InvalidArgument if the folder has caption files of a kind that is not read.
absl::Status CheckCaptionFiles(const TrainDataset& dataset) {
  std::error_code ignored;
  for (const char* name : kOtherMetadata) {
    const fs::path path = fs::path(dataset.folder_path) / name;
    if (!fs::exists(path, ignored)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not read; write its captions to ", kMetadata,
                                                   ", one JSON object a line with file_name and text, or remove it"));
  }
  const std::string extension = absl::AsciiStrToLower(dataset.caption_ext);
  if (extension == "json" || extension == ".json") {
    return absl::InvalidArgumentError(absl::StrCat("caption_ext is ", base::QuotedValue(dataset.caption_ext),
                                                   "; captions are read from text files, as caption_ext: txt, or from ",
                                                   kMetadata));
  }
  return absl::OkStatus();
}

// Lists the images of one folder.
absl::StatusOr<ListedFolder> ListImages(const TrainDataset& dataset, std::vector<std::string>& unlisted,
                                        std::vector<std::string>& unread) {
  const fs::path folder(dataset.folder_path);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, PicturesIn(dataset.folder_path));
  std::error_code ignored;
  ListedFolder listed;
  if (fs::exists(folder / kMetadata, ignored)) {
    ASSIGN_OR_RETURN(listed, ReadMetadata(dataset.folder_path));
    std::set<std::string> paths;
    for (const ListedImage& image : listed.images) paths.insert(fs::path(image.path).lexically_normal().string());
    for (const ListedControls& controls : listed.controls) {
      if (!controls.ok()) continue;
      for (const std::string& path : *controls) paths.insert(fs::path(path).lexically_normal().string());
    }
    for (const std::string& name : names) {
      const std::string path = (folder / name).lexically_normal().string();
      if (paths.count(path) == 0) unlisted.push_back(path);
    }
    for (const char* name : kOtherMetadata) {
      if (fs::exists(folder / name, ignored)) unread.push_back((folder / name).string());
    }
  } else {
    RETURN_IF_ERROR(CheckCaptionFiles(dataset));
    listed.images.reserve(names.size());
    for (const std::string& name : names) {
      listed.images.push_back({(folder / name).string(), CaptionFileOf(folder / name, dataset.caption_ext)});
    }
  }
  if (listed.images.empty() && listed.lines.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("is ", base::QuotedValue(dataset.folder_path),
                                                   ", which has no PNG or JPEG image and no ", kMetadata));
  }
  return listed;
}

// "a, b, c and 4 more"
std::string Some(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamed);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "");
}

absl::StatusOr<std::vector<std::vector<Bucket>>> BucketsOfDataset(const TrainDataset& dataset, const std::string& name,
                                                                  const DatasetOptions& options) {
  std::vector<int64_t> resolutions = dataset.resolution;
  if (resolutions.empty()) resolutions.push_back(options.default_resolution);
  std::vector<std::vector<Bucket>> all;
  for (const int64_t resolution : resolutions) {
    absl::StatusOr<std::vector<Bucket>> buckets = BucketsOf(resolution, options.rule);
    if (!buckets.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".resolution ", std::string(buckets.status().message())));
    }
    all.push_back(*std::move(buckets));
  }
  return all;
}

absl::Status CannotBeUsed(const std::vector<std::string>& reasons) {
  return absl::InvalidArgumentError(absl::StrCat(reasons.size(), reasons.size() == 1 ? " image" : " images",
                                                 " cannot be used: ", Some(reasons),
                                                 "; fix them, or set bad_images: skip"));
}

absl::Status NoImageCanBeUsed(const LeftOutImage& first) {
  return absl::InvalidArgumentError(absl::StrCat("no image can be used: ", first.path, ": ", first.reason));
}

// Removes the pictures of samples that are no longer in the set.
void KeepUsedControls(TrainingSet& set) {
  std::vector<std::vector<ControlPicture>> kept;
  std::vector<int32_t> place(set.controls.size(), -1);  // among the kept ones
  for (TrainingSample& sample : set.samples) {
    if (sample.controls < 0) continue;
    const auto before = static_cast<size_t>(sample.controls);
    if (place[before] < 0) {
      place[before] = static_cast<int32_t>(std::ssize(kept));
      kept.push_back(std::move(set.controls[before]));
    }
    sample.controls = place[before];
  }
  set.controls = std::move(kept);
}

bool IsEnlarged(const Bucket& bucket, const PictureSize& size) {
  return bucket.width > size.width || bucket.height > size.height;
}

// Returns the pictures at which the model looks for an image. INVALID_ARGUMENT, or the error of a picture's content, if
// the image cannot be used with them; it begins with a path.
absl::StatusOr<std::vector<ControlPicture>> ControlPicturesOf(const std::string& image,
                                                              absl::Span<const std::string> paths,
                                                              absl::Span<const absl::StatusOr<PictureContent>> contents,
                                                              const ControlRules& rules) {
  if (paths.empty() && rules.required) {
    return absl::InvalidArgumentError(absl::StrCat(image, ": it has no picture that the model could edit"));
  }
  if (std::ssize(paths) > rules.most) {
    return absl::InvalidArgumentError(absl::StrCat(image, ": there are ", paths.size(),
                                                   " pictures for it; the model looks at ", rules.most, " at most"));
  }
  std::vector<ControlPicture> pictures;
  for (size_t i = 0; i < paths.size(); ++i) {
    RETURN_IF_ERROR(contents[i].status());
    const absl::Status size = CheckReference(rules.fit, contents[i]->size);
    if (!size.ok()) return absl::Status(size.code(), absl::StrCat(paths[i], ": the picture", size.message()));
    pictures.push_back({.path = paths[i], .digest = contents[i]->digest, .size = contents[i]->size});
  }
  return pictures;
}

// An image as the folders have it.
struct ScannedImage {
  size_t place;  // index of its file among all files
  std::string path;
  absl::StatusOr<std::string> caption;
  absl::StatusOr<PictureContent> content;
  absl::StatusOr<std::vector<ControlPicture>> controls;
};

// Builds the set picture by picture.
class Scanner {
 public:
  // The numbers of files and, approximately, of samples.
  Scanner(std::string trigger_word, std::vector<std::string> unlisted, std::vector<std::string> unread, size_t paths,
          size_t samples)
      : trigger_word_(std::move(trigger_word)), newest_of_path_(paths, kNoSample) {
    set_.unlisted = std::move(unlisted);
    set_.unread = std::move(unread);
    set_.samples.reserve(samples);
    next_of_path_.reserve(samples);
  }

  void Add(const TrainDataset& dataset, ScannedImage image, const std::vector<std::vector<Bucket>>& buckets) {
    for (const absl::Status& status : {image.content.status(), image.caption.status(), image.controls.status()}) {
      if (!status.ok()) return LeaveOut(dataset, image.path, std::string(status.message()));
    }
    const std::string caption = WithTriggerWord(*image.caption, dataset.is_reg ? "" : trigger_word_, true);
    const PictureSize size = image.content->size;
    const size_t place = image.place;
    if (image.caption->empty()) set_.without_caption.push_back(image.path);
    const int32_t controls = AddControls(*std::move(image.controls));
    for (const std::vector<Bucket>& sizes : buckets) {
      const Bucket bucket = sizes[NearestBucket(sizes, size.width, size.height)];
      TrainingSample sample = {.path = &sizes == &buckets.back() ? std::move(image.path) : image.path,
                               .digest = image.content->digest,
                               .caption = caption,
                               .caption_dropout_rate = dataset.caption_dropout_rate,
                               .size = size,
                               .bucket = buckets_.try_emplace(bucket, std::ssize(buckets_)).first->second,
                               .repeats = dataset.num_repeats,
                               .controls = controls,
                               .is_reg = dataset.is_reg,
                               .cache_latents_to_disk = dataset.cache_latents_to_disk,
                               .cache_text_embeddings = dataset.cache_text_embeddings,
                               .bad_images = dataset.bad_images};
      if (TrainingSample* const same = Find(place, sample)) {
        same->repeats += dataset.num_repeats;
        if (dataset.bad_images == BadImages::kRefuse) same->bad_images = BadImages::kRefuse;
        continue;
      }
      next_of_path_.push_back(std::exchange(newest_of_path_[place], static_cast<int32_t>(set_.samples.size())));
      set_.enlarged += IsEnlarged(bucket, size);
      set_.samples.push_back(std::move(sample));
    }
  }

  absl::StatusOr<TrainingSet> Finish() {
    if (!refused_.empty()) return CannotBeUsed(refused_);
    if (set_.samples.empty()) return NoImageCanBeUsed(set_.left_out[0]);
    NumberBuckets();
    KeepUsedControls(set_);
    set_.samples.shrink_to_fit();
    return std::move(set_);
  }

  // Leaves out a picture or a line of metadata.jsonl.
  void LeaveOut(const TrainDataset& dataset, const std::string& path, std::string reason) {
    if (dataset.bad_images == BadImages::kRefuse) return refused_.push_back(std::move(reason));
    set_.left_out.push_back(LeftOut(path, reason));
  }

 private:
  static constexpr int32_t kNoSample = -1;

  // Returns the index of these pictures in the set; -1 if there are none.
  int32_t AddControls(std::vector<ControlPicture> controls) {
    if (controls.empty()) return -1;
    set_.controls.push_back(std::move(controls));
    return static_cast<int32_t>(std::ssize(set_.controls)) - 1;
  }

  // The earlier sample whose repeats this one adds to; null if this one is new.
  TrainingSample* Find(size_t place, const TrainingSample& sample) {
    for (int32_t i = newest_of_path_[place]; i != kNoSample; i = next_of_path_[static_cast<size_t>(i)]) {
      TrainingSample& other = set_.samples[static_cast<size_t>(i)];
      if (other.bucket == sample.bucket && other.caption == sample.caption &&
          other.caption_dropout_rate == sample.caption_dropout_rate && other.is_reg == sample.is_reg &&
          std::ranges::equal(set_.ControlsOf(other), set_.ControlsOf(sample))) {
        return &other;
      }
    }
    return nullptr;
  }

  // Numbers buckets by size; until then they are numbered in the order of their first sample.
  void NumberBuckets() {
    std::vector<int64_t> place(buckets_.size());
    for (const auto& [bucket, number] : buckets_) {
      place[static_cast<size_t>(number)] = std::ssize(set_.buckets);
      set_.buckets.push_back(bucket);
    }
    for (TrainingSample& sample : set_.samples) sample.bucket = place[static_cast<size_t>(sample.bucket)];
  }

  const std::string trigger_word_;
  TrainingSet set_;
  std::map<Bucket, int64_t> buckets_;    // with their numbers, in order of first use
  std::vector<int32_t> newest_of_path_;  // the last sample of each file
  std::vector<int32_t> next_of_path_;    // for each sample, the previous sample of the same file
  std::vector<std::string> refused_;
};

PictureDigest DigestOf(const std::string& bytes) {
  const std::string digest = base::Sha256Of(bytes);
  PictureDigest result = {};
  std::ranges::copy(digest, result.begin());
  return result;
}

// Returns the picture of a file if it is the one of the scan.
absl::StatusOr<Frames> LoadUnchanged(const std::string& path, const PictureDigest& digest) {
  const std::string changed = path + ": the file has changed since the run began";
  const auto because = [&](const absl::Status& reason) { return absl::StrCat(changed, ": ", reason.message()); };
  const absl::StatusOr<std::string> bytes = ReadPictureFile(path);
  if (!bytes.ok()) return absl::Status(bytes.status().code(), because(bytes.status()));
  if (DigestOf(*bytes) != digest) {
    const absl::Status is_picture = InspectPicture(*bytes).status();
    return absl::DataLossError(is_picture.ok() ? changed : because(is_picture));
  }
  absl::StatusOr<Frames> image = DecodePicture(*bytes);
  if (!image.ok()) return absl::Status(image.status().code(), absl::StrCat(path, ": ", image.status().message()));
  return image;
}

std::string Images(size_t count) { return absl::StrCat(count, count == 1 ? " image" : " images"); }

}  // namespace

std::string DigestText(const PictureDigest& digest) {
  return absl::BytesToHexString(absl::string_view(digest.data(), digest.size()));
}

absl::Span<const ControlPicture> TrainingSet::ControlsOf(const TrainingSample& sample) const {
  if (sample.controls < 0) return {};
  return controls[static_cast<size_t>(sample.controls)];
}

std::vector<std::string> TrainingSet::TakeWarnings() {
  std::vector<std::string> warnings = Warnings();
  left_out = {};
  without_caption = unlisted = {};
  return warnings;
}

absl::StatusOr<std::vector<int64_t>> TrainingSet::LeaveOut(absl::Span<const LeftOutImage> images) {
  std::map<absl::string_view, const LeftOutImage*> reasons;
  for (const LeftOutImage& image : images) reasons.emplace(image.path, &image);
  std::vector<int64_t> removed;
  std::vector<bool> has_samples(buckets.size());  // for each bucket, after the removal
  int64_t removed_enlarged = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const TrainingSample& sample = samples[i];
    const auto bucket = static_cast<size_t>(sample.bucket);
    const auto found = reasons.find(sample.path);
    if (found == reasons.end()) {
      has_samples[bucket] = true;
      continue;
    }
    if (sample.bad_images == BadImages::kRefuse) {
      return RefusedSinceTheScan(absl::InvalidArgumentError(absl::StrCat(sample.path, ": ", found->second->reason)));
    }
    removed.push_back(static_cast<int64_t>(i));
    removed_enlarged += IsEnlarged(buckets[bucket], sample.size);
  }
  if (removed.size() == samples.size()) return NoImageCanBeUsed(images[0]);
  enlarged -= removed_enlarged;
  std::erase_if(samples, [&](const TrainingSample& sample) { return reasons.contains(sample.path); });
  std::erase_if(without_caption, [&](const std::string& path) { return reasons.contains(path); });
  std::vector<Bucket> kept;
  std::vector<int64_t> place;  // index of each bucket among the remaining ones
  for (size_t i = 0; i < buckets.size(); ++i) {
    place.push_back(std::ssize(kept));
    if (has_samples[i]) kept.push_back(buckets[i]);
  }
  buckets = std::move(kept);
  for (TrainingSample& sample : samples) sample.bucket = place[static_cast<size_t>(sample.bucket)];
  KeepUsedControls(*this);
  return removed;
}

LeftOutImage LeftOut(const std::string& path, const std::string& reason) {
  const std::string prefix = path + ": ";
  return {path, absl::StartsWith(reason, prefix) ? reason.substr(prefix.size()) : reason};
}

std::string LeftOutText(absl::Span<const LeftOutImage> images) {
  std::vector<std::string> names;
  for (const LeftOutImage& image : images) names.push_back(absl::StrCat(image.path, " (", image.reason, ")"));
  return absl::StrCat(Images(images.size()), images.size() == 1 ? " is" : " are", " left out: ", Some(names));
}

std::string CutCaptionsText(const std::vector<std::string>& pictures, const std::string& first) {
  return absl::StrCat(pictures.size(), pictures.size() == 1 ? " caption is" : " captions are",
                      " longer than the model reads and will be cut: ", Some(pictures), "; of the first ", first);
}

absl::Status RefusedSinceTheScan(const absl::Status& error) {
  return absl::Status(error.code(), absl::StrCat(error.message(), "; restore it, or set bad_images: skip"));
}

std::vector<std::string> TrainingSet::Warnings() const {
  std::vector<std::string> warnings;
  if (!left_out.empty()) warnings.push_back(LeftOutText(left_out));
  if (!without_caption.empty()) {
    warnings.push_back(absl::StrCat(Images(without_caption.size()), " without a caption: ", Some(without_caption)));
  }
  if (!unlisted.empty()) {
    warnings.push_back(
        absl::StrCat(Images(unlisted.size()), " not listed in ", kMetadata, " and not used: ", Some(unlisted)));
  }
  if (!unread.empty()) {
    warnings.push_back(absl::StrCat(unread.size(), unread.size() == 1 ? " file is" : " files are",
                                    " not read, since captions come from ", kMetadata, ": ", Some(unread)));
  }
  if (enlarged > 0) {
    warnings.push_back(absl::StrCat(Images(static_cast<size_t>(enlarged)), " of ", samples.size(),
                                    " smaller than the training size and enlarged"));
  }
  return warnings;
}

absl::StatusOr<PictureContent> LookAtPicture(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadPictureFile(path));
  const absl::StatusOr<PictureSize> size = InspectPicture(bytes);
  if (!size.ok()) {
    return absl::Status(size.status().code(), absl::StrCat(path, ": ", std::string(size.status().message())));
  }
  return PictureContent{*size, DigestOf(bytes)};
}

absl::StatusOr<DatasetListing> DatasetListing::Create(const DatasetOptions& options) {
  DatasetListing listing(options);
  for (size_t i = 0; i < options.datasets.size(); ++i) {
    const TrainDataset& dataset = options.datasets[i];
    const std::string name = absl::StrCat("datasets[", i, "]");
    Folder folder{.dataset = &dataset, .buckets = {}, .pictures = {}, .controls = {}, .lines = {}};
    ASSIGN_OR_RETURN(folder.buckets, BucketsOfDataset(dataset, name, options));
    absl::StatusOr<ListedFolder> listed = ListImages(dataset, listing.unlisted_, listing.unread_);
    if (!listed.ok()) {
      const std::string message(listed.status().message());
      const bool about_folder = absl::StartsWith(message, "is ");
      return absl::Status(listed.status().code(), absl::StrCat(name, about_folder ? ".folder_path " : ": ", message));
    }
    absl::Status controls = ListControls(dataset, *listed);
    if (controls.ok()) controls = CheckControls(dataset, *listed, options.controls);
    if (!controls.ok()) {
      const bool about_key = absl::StartsWith(controls.message(), "control_path");
      return absl::Status(controls.code(), absl::StrCat(name, about_key ? "." : ": ", controls.message()));
    }
    for (LeftOutImage& line : listed->lines) {
      folder.lines.push_back({std::move(line.path), absl::StrCat(name, ": ", line.reason)});
    }
    listing.paths_.reserve(listing.paths_.size() + listed->images.size());
    folder.pictures.reserve(listed->images.size());
    for (ListedImage& image : listed->images) {
      listing.paths_.push_back(fs::path(std::exchange(image.path, {})).lexically_normal().string());
      if (!image.caption.ok()) {
        image.caption = absl::Status(image.caption.status().code(),
                                     absl::StrCat(name, ": ", std::string(image.caption.status().message())));
      }
      folder.pictures.push_back({listing.paths_.size() - 1, std::move(image.caption)});
    }
    for (const ListedControls& of_image : listed->controls) {
      if (of_image.ok()) {
        folder.controls.emplace_back(listing.AddPaths(*of_image));
        continue;
      }
      const std::string line = dataset.control_path.empty() ? name + ": " : "";  // the message names no folder
      folder.controls.emplace_back(
          absl::Status(of_image.status().code(), absl::StrCat(line, std::string(of_image.status().message()))));
    }
    listing.folders_.push_back(std::move(folder));
  }
  listing.KeepEachPathOnce();
  ::malloc_trim(0);  // returns the memory that reading many names and captions took
  return listing;
}

std::vector<size_t> DatasetListing::AddPaths(const std::vector<std::string>& paths) {
  std::vector<size_t> added;
  for (const std::string& path : paths) {
    added.push_back(paths_.size());
    paths_.push_back(fs::path(path).lexically_normal().string());
  }
  return added;
}

void DatasetListing::KeepEachPathOnce() {
  std::vector<size_t> sorted(paths_.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, [this](size_t one, size_t other) { return paths_[one] < paths_[other]; });
  std::vector<size_t> first(paths_.size());  // for each path, its first index
  for (size_t i = 0; i < sorted.size(); ++i) {
    const bool again = i > 0 && paths_[sorted[i]] == paths_[sorted[i - 1]];
    first[sorted[i]] = again ? first[sorted[i - 1]] : sorted[i];
  }
  size_t kept = 0;
  std::vector<size_t>& place = sorted;  // index among the paths that are kept
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (first[i] != i) continue;
    if (kept != i) paths_[kept] = std::move(paths_[i]);
    place[i] = kept++;
  }
  paths_.resize(kept);
  for (Folder& folder : folders_) {
    for (Folder::Picture& picture : folder.pictures) picture.path = place[first[picture.path]];
    for (absl::StatusOr<std::vector<size_t>>& controls : folder.controls) {
      if (!controls.ok()) continue;
      for (size_t& path : *controls) path = place[first[path]];
    }
  }
}

absl::Status DatasetListing::CheckNames() const {
  std::vector<std::string> refused;
  for (const Folder& folder : folders_) {
    if (folder.dataset->bad_images != BadImages::kRefuse) continue;
    for (const LeftOutImage& line : folder.lines) refused.push_back(line.reason);
    for (size_t i = 0; i < folder.pictures.size(); ++i) {
      const absl::Status& caption = folder.pictures[i].caption.status();
      const absl::Status controls = folder.controls.empty() ? absl::OkStatus() : folder.controls[i].status();
      if (!caption.ok() || !controls.ok()) refused.emplace_back((caption.ok() ? controls : caption).message());
    }
  }
  return refused.empty() ? absl::OkStatus() : CannotBeUsed(refused);
}

std::string DatasetListing::Digest() const {
  base::Sha256 digest;
  for (const Folder& folder : folders_) {
    digest.UpdatePart(absl::StrCat(folder.pictures.size()));
    for (const Folder::Picture& picture : folder.pictures) {
      digest.UpdatePart(paths_[picture.path]);
      digest.UpdatePart(picture.caption.ok() ? *picture.caption : picture.caption.status().ToString());
    }
    for (const absl::StatusOr<std::vector<size_t>>& controls : folder.controls) {
      digest.UpdatePart(controls.ok() ? absl::StrCat(controls->size()) : controls.status().ToString());
      if (!controls.ok()) continue;
      for (const size_t path : *controls) digest.UpdatePart(paths_[path]);
    }
    for (const LeftOutImage& line : folder.lines) digest.UpdatePart(line.reason);
  }
  return digest.Finish();
}

absl::StatusOr<std::vector<ControlPicture>> DatasetListing::ControlsOf(
    const Folder& folder, size_t picture, absl::Span<const absl::StatusOr<PictureContent>> contents) const {
  if (folder.controls.empty()) return std::vector<ControlPicture>();
  RETURN_IF_ERROR(folder.controls[picture].status());
  std::vector<std::string> paths;
  std::vector<absl::StatusOr<PictureContent>> of_paths;
  for (const size_t path : *folder.controls[picture]) {
    paths.push_back(paths_[path]);
    of_paths.push_back(contents[path]);
  }
  return ControlPicturesOf(paths_[folder.pictures[picture].path], paths, of_paths, options_->controls);
}

absl::StatusOr<TrainingSet> DatasetListing::Scan(absl::Span<const absl::StatusOr<PictureContent>> contents) && {
  size_t samples = 0;
  std::vector<int> uses(paths_.size());  // for each path; its last use moves the text
  for (const Folder& folder : folders_) {
    samples += folder.pictures.size() * folder.buckets.size();
    for (const Folder::Picture& picture : folder.pictures) ++uses[picture.path];
    for (const absl::StatusOr<std::vector<size_t>>& controls : folder.controls) {
      if (!controls.ok()) continue;
      for (const size_t path : *controls) ++uses[path];  // never moved
    }
  }
  Scanner scanner(options_->trigger_word, std::move(unlisted_), std::move(unread_), paths_.size(), samples);
  for (Folder& folder : folders_) {
    for (const LeftOutImage& line : folder.lines) scanner.LeaveOut(*folder.dataset, line.path, line.reason);
    for (size_t i = 0; i < folder.pictures.size(); ++i) {
      Folder::Picture& picture = folder.pictures[i];
      ScannedImage image{.place = picture.path,
                         .path = {},
                         .caption = std::exchange(picture.caption, std::string()),
                         .content = contents[picture.path],
                         .controls = ControlsOf(folder, i, contents)};
      std::string& path = paths_[picture.path];
      image.path = --uses[picture.path] == 0 ? std::move(path) : path;
      scanner.Add(*folder.dataset, std::move(image), folder.buckets);
    }
  }
  return scanner.Finish();
}

absl::StatusOr<TrainingSet> ScanDatasets(const DatasetOptions& options) {
  ASSIGN_OR_RETURN(DatasetListing listing, DatasetListing::Create(options));
  std::vector<absl::StatusOr<PictureContent>> contents;
  contents.reserve(listing.paths().size());
  for (const std::string& path : listing.paths()) contents.push_back(LookAtPicture(path));
  return std::move(listing).Scan(contents);
}

std::string WithTriggerWord(const std::string& caption, const std::string& word, bool in_front) {
  if (absl::StrContains(caption, kTrigger)) {
    return std::string(absl::StripAsciiWhitespace(absl::StrReplaceAll(caption, {{kTrigger, word}})));
  }
  if (word.empty() || !in_front) return caption;
  return caption.empty() ? word : absl::StrCat(word, " ", caption);
}

absl::StatusOr<Frames> LoadTrainingPicture(const TrainingSample& sample, const Bucket& bucket) {
  ASSIGN_OR_RETURN(const Frames image, LoadUnchanged(sample.path, sample.digest));
  const PictureBox box = CoverBox(image.width, image.height, bucket.width, bucket.height);
  return Resample(image, box, bucket.width, bucket.height);
}

absl::StatusOr<Frames> LoadControlPicture(const ControlPicture& picture) {
  return LoadUnchanged(picture.path, picture.digest);
}

}  // namespace tessera::control
