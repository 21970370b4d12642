#include "tests/golden_runner/case_pictures.h"

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/kontext_size.h"
#include "control/pictures/mask.h"
#include "control/pictures/mask_crop.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"
#include "control/pictures/strength.h"
#include "control/pictures/vision_processor.h"
#include "models/qwen_image/edit_prompt.h"
#include "runtime/engine/job_pictures.h"

namespace tessera::golden {
namespace {

absl::StatusOr<control::Frames> Read(const Case& test_case, const char* argument) {
  return PictureAt(test_case, test_case.Text(argument));
}

// The areas of the reference pipelines, which most cases replace by smaller ones.
int64_t AreaOf(const Case& test_case, const char* name, int64_t fallback) {
  const base::Json* const areas = test_case.arguments.Find("areas");
  const base::Json* const area = areas != nullptr ? areas->Find(name) : nullptr;
  return area != nullptr ? area->AsInt().value_or(0) : fallback;
}

int64_t ModelArea(const Case& test_case) { return AreaOf(test_case, "vae", 1024 * 1024); }

// Returns the picture that the case begins from, "image" or the only one of "images"; "" if it has none.
std::string FirstPicture(const Case& test_case) {
  const base::Json* const list = test_case.arguments.Find("images");
  if (list == nullptr || list->items().empty()) return test_case.Text("image");
  const std::string* const first = list->items()[0].AsString();
  return first != nullptr ? *first : "";
}

absl::StatusOr<control::Frames> ReadFirstPicture(const Case& test_case) {
  return PictureAt(test_case, FirstPicture(test_case));
}

// Whether the pipeline is one of FLUX.2 that begins from its first picture, whose size is that of the image.
bool IsFlux2Inpainting(const Case& test_case) { return test_case.Text("pipeline") == "Flux2KleinInpaintPipeline"; }
bool IsFlux2(const Case& test_case) { return test_case.Text("pipeline").starts_with("Flux2"); }

// The region of the picture that is painted; none: all of it.
absl::StatusOr<std::optional<control::PixelRegion>> RegionOf(const Case& test_case) {
  if (test_case.arguments.Find("padding_mask_crop") == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(const control::Frames mask, Read(test_case, "mask"));
  ASSIGN_OR_RETURN(const control::PictureSize size, SizeOf(test_case));
  ASSIGN_OR_RETURN(
      const control::PixelRegion region,
      control::MaskRegion(mask, size.width, size.height, static_cast<int>(test_case.Int("padding_mask_crop", 0))));
  return region;
}

// The pictures of "images" as FLUX.2 reads them.
absl::StatusOr<std::vector<at::Tensor>> References(const Case& test_case) {
  std::vector<at::Tensor> values;
  const base::Json* const list = test_case.arguments.Find("images");
  for (const base::Json& file : list != nullptr ? list->items() : std::span<const base::Json>()) {
    ASSIGN_OR_RETURN(const std::string bytes, control::ReadPictureFile(test_case.Path(*file.AsString())));
    ASSIGN_OR_RETURN(const control::Frames picture, control::DecodePicture(bytes));
    ASSIGN_OR_RETURN(const control::Frames fitted, control::FitReference(control::ReferenceFit::kFlux2, picture));
    values.push_back(runtime::PictureValues(fitted));
  }
  return values;
}

}  // namespace

absl::StatusOr<control::Frames> PictureAt(const Case& test_case, const std::string& file) {
  ASSIGN_OR_RETURN(const std::string bytes, control::ReadPictureFile(test_case.Path(file)));
  return control::DecodePicture(bytes);
}

absl::StatusOr<std::vector<control::Frames>> ListedPictures(const Case& test_case) {
  std::vector<control::Frames> pictures;
  const base::Json* const list = test_case.arguments.Find("images");
  for (const base::Json& file : list != nullptr ? list->items() : std::span<const base::Json>()) {
    ASSIGN_OR_RETURN(control::Frames picture, PictureAt(test_case, file.AsString() ? *file.AsString() : ""));
    pictures.push_back(std::move(picture));
  }
  return pictures;
}

void ComparePicture(const Case& test_case, const Tensors& gold, const std::string& name, const control::Frames& picture,
                    Report& report) {
  const at::Tensor bytes = at::empty({picture.height, picture.width, picture.channels}, at::kByte);
  TORCH_CHECK(bytes.nbytes() == picture.bytes.size(), "a picture has no pixels");
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), picture.bytes.data(), picture.bytes.size());
  if (const auto recorded = gold.find(name); recorded != gold.end()) {
    report.Add(name, AbsoluteError(bytes, recorded->second), 0);
  }
  const base::Json* const hashes = test_case.arguments.Find("hashes");
  const base::Json* const hash = hashes != nullptr ? hashes->Find(name) : nullptr;
  if (hash == nullptr) return;
  const base::Json* const digest = hash->Find("sha256");
  const std::string own = absl::BytesToHexString(
      base::Sha256Of({reinterpret_cast<const char*>(picture.bytes.data()), picture.bytes.size()}));
  report.Add(name, digest != nullptr && digest->AsString() != nullptr && own == *digest->AsString() ? 0 : 1, 0);
  if (const auto sample = gold.find(absl::StrCat(name, ".every16")); sample != gold.end()) {
    report.Add(sample->first,
               AbsoluteError(bytes.slice(0, 0, std::nullopt, 16).slice(1, 0, std::nullopt, 16), sample->second), 0);
  }
}

absl::StatusOr<EditPictures> ReadEditPictures(const Case& test_case) {
  EditPictures pictures;
  const bool plus = test_case.Text("pipeline") == "QwenImageEditPlusPipeline";
  ASSIGN_OR_RETURN(const std::vector<control::Frames> sources, ListedPictures(test_case));
  const auto stretched = [](const control::Frames& picture, int64_t area) -> absl::StatusOr<control::Frames> {
    ASSIGN_OR_RETURN(const control::PictureSize size, control::SizeOfArea({picture.width, picture.height}, area));
    return control::Resize(picture, size.width, size.height);
  };
  for (const control::Frames& source : sources) {
    ASSIGN_OR_RETURN(control::Frames of_model, stretched(source, ModelArea(test_case)));
    ASSIGN_OR_RETURN(control::Frames of_prompt,
                     stretched(source, plus ? AreaOf(test_case, "condition", 384 * 384) : ModelArea(test_case)));
    pictures.of_model.push_back(std::move(of_model));
    pictures.of_prompt.push_back(std::move(of_prompt));
  }
  return pictures;
}

absl::StatusOr<control::PictureSize> SizeOf(const Case& test_case) {
  if (models::EditingOf(test_case.Text("pipeline")) != models::Editing::kNone) {
    ASSIGN_OR_RETURN(const std::vector<control::Frames> sources, ListedPictures(test_case));
    const bool plus = test_case.Text("pipeline") == "QwenImageEditPlusPipeline";
    const control::Frames& shaped = plus ? sources.back() : sources.front();
    ASSIGN_OR_RETURN(control::PictureSize size,
                     control::SizeOfArea({shaped.width, shaped.height}, ModelArea(test_case)));
    size.width = static_cast<int>(test_case.Int("width", size.width) / 16 * 16);
    size.height = static_cast<int>(test_case.Int("height", size.height) / 16 * 16);
    return size;
  }
  control::PictureSize size{.width = static_cast<int>(test_case.Int("width", 0)),
                            .height = static_cast<int>(test_case.Int("height", 0))};
  if (IsFlux2(test_case) && !FirstPicture(test_case).empty()) {
    ASSIGN_OR_RETURN(const control::Frames picture, ReadFirstPicture(test_case));
    const bool begins = IsFlux2Inpainting(test_case);
    const std::optional<control::PictureSize> usual = control::SizeOfResult(
        control::ReferenceFit::kFlux2, std::array{control::PictureSize{picture.width, picture.height}}, begins);
    if (!usual.has_value()) return absl::InvalidArgumentError("the first picture has no size");
    if (size.width == 0 || begins) size.width = usual->width;
    if (size.height == 0 || begins) size.height = usual->height;
    return size;
  }
  if (size.width > 0 || FirstPicture(test_case).empty()) return size;
  // The reference rounds the picture's own size down.
  constexpr int kMultiple = 16;
  ASSIGN_OR_RETURN(const control::Frames picture, ReadFirstPicture(test_case));
  return control::PictureSize{.width = picture.width / kMultiple * kMultiple,
                              .height = picture.height / kMultiple * kMultiple};
}

absl::StatusOr<runtime::PictureInputs> PreparedPictures(const Case& test_case) {
  runtime::PictureInputs inputs{.first_step = control::FirstStepOfStrength(static_cast<int>(test_case.Int("steps", 0)),
                                                                           test_case.Number("strength", 1))};
  if (models::EditingOf(test_case.Text("pipeline")) != models::Editing::kNone) {
    ASSIGN_OR_RETURN(const EditPictures pictures, ReadEditPictures(test_case));
    for (const control::Frames& picture : pictures.of_model) {
      inputs.pictures.push_back(runtime::PictureValues(picture));
    }
    return inputs;
  }
  ASSIGN_OR_RETURN(const std::optional<control::PixelRegion> region, RegionOf(test_case));
  ASSIGN_OR_RETURN(const control::PictureSize whole, SizeOf(test_case));
  const int width = whole.width, height = whole.height;
  const control::FitMode mode = region ? control::FitMode::kFill : control::FitMode::kStretch;
  if (IsFlux2(test_case) && !IsFlux2Inpainting(test_case)) {
    ASSIGN_OR_RETURN(inputs.pictures, References(test_case));
  } else if (!FirstPicture(test_case).empty()) {
    ASSIGN_OR_RETURN(control::Frames picture, ReadFirstPicture(test_case));
    control::PictureSize size{.width = width, .height = height};
    // The reference's resize to preferred sizes was off.
    if (test_case.Text("pipeline") == "FluxKontextPipeline") {
      ASSIGN_OR_RETURN(size, control::KontextPictureSize({picture.width, picture.height}, /*auto_resize=*/false));
    }
    if (region) {
      ASSIGN_OR_RETURN(picture, control::CutRegion(picture, *region));
    }
    if (IsFlux2(test_case) && !region) {
      ASSIGN_OR_RETURN(picture, control::FitStart(control::ReferenceFit::kFlux2, picture, size));
    } else {
      ASSIGN_OR_RETURN(picture, control::FitPicture(picture, size.width, size.height, mode));
    }
    inputs.pictures.push_back(runtime::PictureValues(picture));
  }
  if (test_case.arguments.Find("reference") != nullptr) {
    ASSIGN_OR_RETURN(const control::Frames reference, Read(test_case, "reference"));
    ASSIGN_OR_RETURN(const control::Frames fitted, control::FitReference(control::ReferenceFit::kFlux2, reference));
    inputs.pictures.push_back(runtime::PictureValues(fitted));
  }
  if (test_case.arguments.Find("mask") != nullptr) {
    ASSIGN_OR_RETURN(control::Frames mask, Read(test_case, "mask"));
    if (region) {
      ASSIGN_OR_RETURN(mask, control::CutRegion(mask, *region));
    }
    ASSIGN_OR_RETURN(mask, control::PrepareMask(mask, width, height, mode));
    inputs.mask = runtime::MaskValues(mask);
  }
  return inputs;
}

absl::StatusOr<at::Tensor> FinishedPixels(const Case& test_case, const at::Tensor& pixels) {
  ASSIGN_OR_RETURN(const std::optional<control::PixelRegion> region, RegionOf(test_case));
  if (!region) return pixels;
  const at::Tensor bytes = pixels.contiguous();
  control::Frames painted{.width = static_cast<int>(bytes.size(2)), .height = static_cast<int>(bytes.size(1))};
  painted.bytes.assign(bytes.const_data_ptr<uint8_t>(), bytes.const_data_ptr<uint8_t>() + bytes.numel());
  ASSIGN_OR_RETURN(const control::Frames mask, Read(test_case, "mask"));
  ASSIGN_OR_RETURN(const control::Frames original, ReadFirstPicture(test_case));
  ASSIGN_OR_RETURN(const control::Frames finished, control::OverlayPicture(mask, original, painted, region));
  const at::Tensor result = at::empty({1, finished.height, finished.width, 3}, at::kByte);
  std::memcpy(result.mutable_data_ptr<uint8_t>(), finished.bytes.data(), finished.bytes.size());
  return result;
}

}  // namespace tessera::golden
