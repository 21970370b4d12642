// Runs the cases of functions of pictures and masks before the autoencoder: decoding, sizes, masks and their regions.
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/blur.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/mask.h"
#include "control/pictures/mask_crop.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"
#include "control/pictures/vision_processor.h"
#include "models/token_grid.h"
#include "runtime/denoising/picture_inputs.h"
#include "runtime/engine/job_pictures.h"
#include "server/pictures/decode_picture.h"
#include "server/pictures/picture_pixels.h"
#include "tests/golden_runner/case_pictures.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

using control::Frames;

// One row of the case's arguments: what was asked. The runner reports an exception as a failure of the case.
struct Row {
  const Case& test_case;
  const base::Json& json;
  int width = 0, height = 0;
  std::string prefix;  // of its tensors

  const base::Json& Field(const char* name) const {
    const base::Json* field = json.Find(name);
    if (field == nullptr) throw std::runtime_error(absl::StrCat("a row has no field ", base::Quote(name)));
    return *field;
  }
  int Int(const char* name) const {
    const std::optional<int64_t> value = Field(name).AsInt();
    if (!value) throw std::runtime_error(absl::StrCat("a row's field ", base::Quote(name), " is not a whole number"));
    return static_cast<int>(*value);
  }
  std::string Text(const char* name) const {
    const std::string* text = Field(name).AsString();
    if (text == nullptr) throw std::runtime_error(absl::StrCat("a row's field ", base::Quote(name), " is not a text"));
    return *text;
  }
};

// Returns a picture of the case's folder as RGB, decoded like those that callers send. Its alpha channel is dropped.
absl::StatusOr<Frames> SentPictureAt(const Case& test_case, const std::string& file) {
  ASSIGN_OR_RETURN(const std::string bytes, control::ReadPictureFile(test_case.Path(file)));
  ASSIGN_OR_RETURN(server::DecodedPicture picture, server::DecodePicture(bytes, server::PictureLimits()));
  return server::DropAlpha(std::move(picture.frames));
}

at::Tensor TensorOf(const void* bytes, at::IntArrayRef shape) {
  const at::Tensor tensor = at::empty(shape, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes, tensor.nbytes());
  return tensor;
}

// [height, width, channels]
at::Tensor TensorOf(const Frames& frame) {
  return TensorOf(frame.bytes.data(), {frame.height, frame.width, frame.channels});
}

Frames FrameOf(const at::Tensor& pixels) {
  const at::Tensor plain = pixels.contiguous();
  if (plain.scalar_type() != at::kByte || plain.dim() != 3) throw std::runtime_error("a tensor is no picture");
  Frames frame{.width = static_cast<int>(plain.size(1)),
               .height = static_cast<int>(plain.size(0)),
               .channels = static_cast<int>(plain.size(2)),
               .bytes = {}};
  frame.bytes.resize(plain.nbytes());
  std::memcpy(frame.bytes.data(), plain.data_ptr(), plain.nbytes());
  return frame;
}

control::FitMode ModeOf(const std::string& name) {
  if (name == "default") return control::FitMode::kStretch;
  if (name == "crop") return control::FitMode::kCrop;
  if (name == "fill") return control::FitMode::kFill;
  throw std::runtime_error(absl::StrCat("the mode ", base::Quote(name), " is unknown"));
}

void Exact(const std::string& name, const at::Tensor& actual, const Tensors& gold, Report& report) {
  report.Add(name, AbsoluteError(actual, gold.at(name)), 0);
}

absl::StatusOr<Report> RunLoad(const Case& test_case, const Tensors& gold) {
  Report report;
  const base::Json* images = test_case.arguments.Find("images");
  if (images == nullptr) return absl::InvalidArgumentError("the case has no field \"images\"");
  for (const base::Json& image : images->items()) {
    const std::string file = image.AsString() ? *image.AsString() : "";
    const std::string name = std::filesystem::path(file).stem().string();
    ASSIGN_OR_RETURN(const Frames picture, SentPictureAt(test_case, file));
    Exact(name + ".rgb", TensorOf(picture), gold, report);
    ASSIGN_OR_RETURN(const Frames gray, control::ToGray(picture));
    Exact(name + ".gray", TensorOf(gray), gold, report);
  }
  report.Add("number of pictures", 2 * images->items().size() == gold.size() ? 0 : 1, 0);
  return report;
}

absl::Status RunResize(const Row& row, const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(const Frames picture, SentPictureAt(row.test_case, row.Text("image")));
  const control::FitMode mode = ModeOf(row.Text("mode"));
  ASSIGN_OR_RETURN(const Frames fitted, control::FitPicture(picture, row.width, row.height, mode));
  Exact(row.prefix + "out", TensorOf(fitted), gold, report);
  const auto expected = gold.find(row.prefix + "preprocessed");
  if (expected == gold.end()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Frames whole, control::FitPicture(picture, row.width / 16 * 16, row.height / 16 * 16, mode));
  const at::Tensor values = runtime::PictureValues(whole);
  report.Add(expected->first, RelativeError(values, expected->second), row.test_case.Tolerance("fp32"));
  return absl::OkStatus();
}

absl::Status RunMask(const Row& row, const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(Frames mask, SentPictureAt(row.test_case, row.Text("mask")));
  if (row.Int("blur") > 0) {
    ASSIGN_OR_RETURN(mask, control::GaussianBlur(mask, static_cast<float>(row.Int("blur"))));
    const bool gray = gold.at(row.prefix + "blurred").size(2) == 1;
    ASSIGN_OR_RETURN(const Frames compared, gray ? control::ToGray(mask) : mask);
    Exact(row.prefix + "blurred", TensorOf(compared), gold, report);
  }
  ASSIGN_OR_RETURN(const Frames resized, control::Resize(mask, row.width, row.height));
  ASSIGN_OR_RETURN(const Frames gray, control::ToGray(resized));
  Exact(row.prefix + "resized", TensorOf(gray), gold, report);
  const int width = row.width / 16 * 16, height = row.height / 16 * 16;
  ASSIGN_OR_RETURN(const Frames binary, control::PrepareMask(mask, width, height, control::FitMode::kStretch));
  Exact(row.prefix + "binary", TensorOf(binary.bytes.data(), {1, 1, height, width}), gold, report);
  const at::Tensor values = runtime::MaskValues(binary);
  Exact(row.prefix + "latent", runtime::MaskOfLatents(values, control::MaskRule::kFirstPixel, height / 8, width / 8),
        gold, report);
  const at::Tensor channels = runtime::MaskChannels(values, height / 8, width / 8);
  Exact(row.prefix + "fill", channels, gold, report);
  Exact(row.prefix + "fill_packed", models::Patchify(channels, 2), gold, report);
  return absl::OkStatus();
}

absl::Status RunCrop(const Row& row, const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(const Frames mask, SentPictureAt(row.test_case, row.Text("mask")));
  ASSIGN_OR_RETURN(const Frames picture, SentPictureAt(row.test_case, row.Text("image")));
  ASSIGN_OR_RETURN(const control::PixelRegion region, control::MaskRegion(mask, row.width, row.height, row.Int("pad")));
  std::vector<int64_t> expected;
  for (const base::Json& side : row.Field("region").items()) expected.push_back(side.AsInt().value_or(-1));
  const std::vector<int64_t> actual = {region.left, region.top, region.right, region.bottom};
  report.Add(row.prefix + "region", actual == expected ? 0 : 1, 0);
  ASSIGN_OR_RETURN(const Frames part, control::CutRegion(picture, region));
  ASSIGN_OR_RETURN(const Frames image, control::FitPicture(part, row.width, row.height, control::FitMode::kFill));
  Exact(row.prefix + "image", TensorOf(image), gold, report);
  ASSIGN_OR_RETURN(const Frames mask_part, control::CutRegion(mask, region));
  ASSIGN_OR_RETURN(const Frames binary,
                   control::PrepareMask(mask_part, row.width, row.height, control::FitMode::kFill));
  Exact(row.prefix + "mask", TensorOf(binary.bytes.data(), {1, 1, row.height, row.width}), gold, report);
  const auto overlay = [&](const std::string& name, const std::string& painted,
                           const std::optional<control::PixelRegion>& place) -> absl::Status {
    ASSIGN_OR_RETURN(const Frames result,
                     control::OverlayPicture(mask, picture, FrameOf(gold.at(row.prefix + painted)), place));
    report.Add(row.prefix + name, AbsoluteError(TensorOf(result), gold.at(row.prefix + name)),
               row.test_case.Tolerance("uint8_overlay"));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(overlay("overlay", "painted", region));
  return overlay("overlay_whole", "painted_whole", std::nullopt);
}

// Masks as inpainting blends with them: at full size, of FLUX.2's tokens and of other models' latents.
absl::StatusOr<Report> RunMasks(const Case& test_case, const Tensors& gold) {
  Report report;
  const base::Json* rows = test_case.arguments.Find("rows");
  if (rows == nullptr) return absl::InvalidArgumentError("the case has no field \"rows\"");
  for (const base::Json& json : rows->items()) {
    Row row{.test_case = test_case, .json = json};
    row.prefix = absl::StrCat(row.Int("index"), ".");
    const base::Json& size = row.Field("size");
    const auto side = [&](size_t index) {
      return size.items().size() == 2 ? size.items()[index].AsInt().value_or(0) : int64_t{0};
    };
    row.width = static_cast<int>(side(0));
    row.height = static_cast<int>(side(1));
    ASSIGN_OR_RETURN(const Frames mask, SentPictureAt(test_case, row.Text("mask")));
    ASSIGN_OR_RETURN(const Frames binary,
                     control::PrepareMask(mask, row.width, row.height, control::FitMode::kStretch));
    const at::Tensor values = runtime::MaskValues(binary);
    Exact(row.prefix + "binary", values, gold, report);
    const int64_t h = row.height, w = row.width;
    Exact(row.prefix + "latent", runtime::MaskOfLatents(values, control::MaskRule::kFirstPixel, h / 8, w / 8), gold,
          report);
    const at::Tensor tokens = runtime::MaskOfLatents(values, control::MaskRule::kMiddlePixels, h / 16, w / 16);
    report.Add(row.prefix + "klein", AbsoluteError(tokens.reshape({1, -1, 1}), gold.at(row.prefix + "klein")),
               test_case.Tolerance("fp32"));
  }
  return report;
}

absl::StatusOr<Report> RunRows(const Case& test_case, const Tensors& gold,
                               absl::Status (*run)(const Row&, const Tensors&, Report&)) {
  Report report;
  const base::Json* rows = test_case.arguments.Find("rows");
  if (rows == nullptr) return absl::InvalidArgumentError("the case has no field \"rows\"");
  for (const base::Json& json : rows->items()) {
    Row row{.test_case = test_case, .json = json};
    row.width = row.Int("width");
    row.height = row.Int("height");
    row.prefix = absl::StrCat(row.Int("index"), ".");
    RETURN_IF_ERROR(run(row, gold, report));
  }
  return report;
}

// Pictures as models that look at them get them: by the processor of Qwen2.5-VL, after a stretch if the row names a
// size; stretched to a size; or as references of FLUX.2.
absl::StatusOr<Report> RunModelPictures(const Case& test_case, const Tensors& gold) {
  // The limits of the published processors.
  constexpr control::ProcessorLimits kLimits{.max_pixels = 12845056};
  Report report;
  const base::Json* const rows = test_case.arguments.Find("rows");
  if (rows == nullptr) return absl::InvalidArgumentError("the case has no field \"rows\"");
  for (const base::Json& json : rows->items()) {
    const Row row{.test_case = test_case, .json = json};
    ASSIGN_OR_RETURN(Frames picture, SentPictureAt(test_case, row.Text("image")));
    if (const base::Json* const size = json.Find("size"); size != nullptr) {
      const auto side = [&](size_t i) { return static_cast<int>(size->items()[i].AsInt().value_or(0)); };
      ASSIGN_OR_RETURN(picture, control::Resize(picture, side(0), side(1)));
    }
    std::string result = "out";
    if (const std::string rule = row.Text("rule"); rule == "processor") {
      result = "torchvision";
      ASSIGN_OR_RETURN(const control::PictureSize size,
                       control::ProcessorSize({picture.width, picture.height}, kLimits));
      ASSIGN_OR_RETURN(picture, control::ResizeBicubic(picture, size.width, size.height));
    } else if (rule == "reference") {
      ASSIGN_OR_RETURN(picture, control::FitReference(control::ReferenceFit::kFlux2, picture));
    } else if (rule != "stretch") {
      return absl::UnimplementedError(absl::StrCat("the rule ", base::Quote(rule)));
    }
    ComparePicture(test_case, gold, absl::StrCat(row.Int("index"), ".", result), picture, report);
  }
  return report;
}

// Functions of rows by the name in the case.
constexpr std::pair<std::string_view, absl::Status (*)(const Row&, const Tensors&, Report&)> kImageFunctions[] = {
    {"resize", RunResize},
    {"mask", RunMask},
    {"crop", RunCrop},
};

}  // namespace

absl::StatusOr<Report> RunImageFunction(const Case& test_case) {
  const std::string name = test_case.Text("function");
  if (name == "load") {
    ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
    return RunLoad(test_case, gold);
  }
  if (name == "masks" || name == "pictures") {
    ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
    return name == "masks" ? RunMasks(test_case, gold) : RunModelPictures(test_case, gold);
  }
  for (const auto& [known, run] : kImageFunctions) {
    if (name != known) continue;
    ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
    return RunRows(test_case, gold, run);
  }
  return absl::UnimplementedError(absl::StrCat("image function ", base::Quote(name)));
}

}  // namespace tessera::golden
