#include "models/text_encoders/picture_processor.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"

namespace tessera::models {
namespace {

constexpr int kMadeUpSide = 56;  // two units of an encoder of Qwen2.5-VL

constexpr int64_t kBicubic = 3;  // Pillow's number of the filter
constexpr double kRescale = 1.0 / 255;

// Opens the part of the folder's files that describes how pictures are processed.
absl::StatusOr<base::ConfigReader> OpenFields(const std::string& folder, const std::string& name) {
  constexpr char kProcessor[] = "processor_config.json", kPreprocessor[] = "preprocessor_config.json";
  std::error_code error;
  if (std::filesystem::exists(folder + "/" + kProcessor, error)) {
    ASSIGN_OR_RETURN(const base::ConfigReader whole,
                     base::ConfigReader::FromFile(folder + "/" + kProcessor, absl::StrCat(name, "/", kProcessor)));
    const base::Json* const part = whole.json().Find("image_processor");
    if (part != nullptr) return base::ConfigReader::FromJson(*part, absl::StrCat(whole.name(), ": image_processor"));
  }
  return base::ConfigReader::FromFile(folder + "/" + kPreprocessor, absl::StrCat(name, "/", kPreprocessor));
}

// Reads a limit in pixels: in older files it has a name; newer ones have both as "edges" of "size".
int64_t Limit(base::ConfigReader& reader, const char* key, const char* edge, int64_t fallback) {
  const base::Json* const size = reader.json().Find("size");
  const base::Json* const of_size = size != nullptr ? size->Find(edge) : nullptr;
  if (of_size != nullptr && !of_size->is_null()) {
    const std::optional<int64_t> pixels = of_size->AsInt();
    if (!pixels || *pixels < 1) reader.AddError("size", absl::StrCat(edge, " must be a number of pixels"));
    fallback = pixels.value_or(fallback);
  }
  return reader.Int(key, fallback, 1, int64_t{1} << 40);
}

void ReadChannels(base::ConfigReader& reader, const char* key, std::array<double, 3>& channels) {
  const std::vector<double> values = reader.Numbers(key, {});
  if (values.size() != channels.size()) {
    reader.AddError(key, "it must have 3 numbers");
    return;
  }
  std::copy(values.begin(), values.end(), channels.begin());
}

}  // namespace

absl::StatusOr<PatchGrid> PictureProcessor::GridOf(const control::PictureSize& picture) const {
  ASSIGN_OR_RETURN(const control::PictureSize size, control::ProcessorSize(picture, limits));
  return PatchGrid{.rows = size.height / patch, .columns = size.width / patch};
}

absl::StatusOr<control::Frames> PictureProcessor::Resized(const control::Frames& picture) const {
  ASSIGN_OR_RETURN(const control::PictureSize size, control::ProcessorSize({picture.width, picture.height}, limits));
  return control::ResizeBicubic(picture, size.width, size.height);
}

EncoderPicture PictureProcessor::PatchesOf(const control::Frames& resized) const {
  const int64_t rows = resized.height / patch, columns = resized.width / patch;
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(resized.bytes.data()), {resized.height, resized.width, 3},
                                         at::TensorOptions(at::kByte));
  std::vector<float> offset, scale;
  for (size_t channel = 0; channel < mean.size(); ++channel) {
    offset.push_back(static_cast<float>(mean[channel]) * 255);
    scale.push_back(static_cast<float>(deviation[channel]) * 255);
  }
  const at::Tensor values = (bytes.to(at::kFloat) - at::tensor(offset)) / at::tensor(scale);  // [h, w, c]
  // Patches in the order of their units; features are (channel, frame, row, column).
  const at::Tensor patches = values.view({rows / kMerge, kMerge, patch, columns / kMerge, kMerge, patch, 3})
                                 .permute({0, 3, 1, 4, 6, 2, 5})
                                 .reshape({rows * columns, 3, 1, patch * patch})
                                 .expand({-1, -1, frames, -1})
                                 .reshape({rows * columns, -1});
  return {.patches = patches, .grid = {.rows = rows, .columns = columns}};
}

absl::StatusOr<PictureProcessor> ReadPictureProcessor(const std::string& folder, const std::string& name,
                                                      const PictureReading& reading) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, OpenFields(folder, name));
  PictureProcessor processor;
  processor.patch = reader.Int("patch_size", 14, reading.patch, reading.patch);
  processor.frames = reader.Int("temporal_patch_size", 2, reading.frames, reading.frames);
  reader.Int("merge_size", kMerge, kMerge, kMerge);
  processor.limits.unit = static_cast<int>(processor.patch * kMerge);
  processor.limits.min_pixels = Limit(reader, "min_pixels", "shortest_edge", processor.limits.min_pixels);
  processor.limits.max_pixels = Limit(reader, "max_pixels", "longest_edge", processor.limits.max_pixels);
  ReadChannels(reader, "image_mean", processor.mean);
  ReadChannels(reader, "image_std", processor.deviation);
  reader.Int("resample", kBicubic, kBicubic, kBicubic);
  if (std::abs(reader.Number("rescale_factor", kRescale) - kRescale) > 1e-9) {
    reader.AddError("rescale_factor", "it must be 1/255");
  }
  for (const char* const step : {"do_convert_rgb", "do_normalize", "do_rescale", "do_resize"}) {
    if (!reader.Bool(step, true)) reader.AddError(step, "only true is supported");
  }
  for (const double deviation : processor.deviation) {
    if (deviation <= 0) reader.AddError("image_std", "each number must be above 0");
  }
  if (processor.limits.min_pixels > processor.limits.max_pixels) {
    reader.AddError("max_pixels", absl::StrCat("it must be at least min_pixels = ", processor.limits.min_pixels));
  }
  RETURN_IF_ERROR(reader.status());
  return processor;
}

SharedPromptPictures MadeUpPromptPictures(int64_t count) {
  control::Frames picture{.width = kMadeUpSide, .height = kMadeUpSide, .bytes = {}};
  picture.bytes.resize(picture.row_bytes() * picture.rows());
  return MakePromptPictures(std::vector<control::Frames>(static_cast<size_t>(count), picture));
}

SharedPromptPictures MakePromptPictures(std::vector<control::Frames> pictures) {
  if (pictures.empty()) return nullptr;
  base::Sha256 digest;
  for (const control::Frames& picture : pictures) {
    digest.UpdatePart(absl::StrCat(picture.width, "x", picture.height));
    digest.UpdatePart({reinterpret_cast<const char*>(picture.bytes.data()), picture.bytes.size()});
  }
  return std::make_shared<PromptPictures>(PromptPictures{.pictures = std::move(pictures), .key = digest.Finish()});
}

}  // namespace tessera::models
