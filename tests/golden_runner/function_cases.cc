// Runs the cases of small functions: prompt cleaning, tables of sizes, conversion to 8 bits, the cut of steps.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "control/model/model_cost.h"
#include "control/pictures/kontext_size.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"
#include "control/pictures/strength.h"
#include "control/pictures/vision_processor.h"
#include "models/captions/caption_cleaning.h"
#include "models/hunyuandit/image_sizes.h"
#include "models/pixart/resolution_bins.h"
#include "models/text_encoders/picture_layout.h"
#include "models/text_encoders/picture_processor.h"
#include "runtime/engine/image_output.h"
#include "runtime/engine/job_pictures.h"
#include "runtime/samplers/schedule.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

// A field that the cases of a known function must have. The runner reports an exception as a failure of the case.
const base::Json& Field(const base::Json& object, const std::string& name) {
  const base::Json* field = object.Find(name);
  if (field == nullptr) throw std::runtime_error(absl::StrCat("the case has no field ", base::Quote(name)));
  return *field;
}

const std::string& Text(const base::Json& object, const char* name) {
  const std::string* text = Field(object, name).AsString();
  if (text == nullptr) throw std::runtime_error(absl::StrCat("the case's field ", base::Quote(name), " is not a text"));
  return *text;
}

double Number(const base::Json& object, const char* name) {
  const std::optional<double> number = Field(object, name).AsNumber();
  if (!number) throw std::runtime_error(absl::StrCat("the case's field ", base::Quote(name), " is not a number"));
  return *number;
}

int64_t Int(const base::Json& object, const char* name) { return static_cast<int64_t>(Number(object, name)); }

int64_t At(const base::Json& list, size_t index) {
  if (index >= list.items().size()) throw std::runtime_error("the case has a list that is too short");
  return static_cast<int64_t>(list.items()[index].AsNumber().value_or(-1));
}

absl::StatusOr<base::Json> ReadContent(const Case& test_case) {
  const absl::StatusOr<std::string> text =
      base::ReadWholeFile(test_case.Path(test_case.file), test_case.file, base::kMaxJsonBytes);
  if (!text.ok()) return text.status();
  return base::ParseJson(*text, test_case.file);
}

absl::StatusOr<Report> RunCaptions(const Case& test_case) {
  const absl::StatusOr<base::Json> rows = ReadContent(test_case);
  if (!rows.ok()) return rows.status();
  Report report;
  for (const base::Json& row : rows->items()) {
    const std::string& prompt = Text(row, "prompt");
    report.Add("cleaned " + base::Quote(prompt),
               models::CleanCaption(prompt).value_or("") == Text(row, "cleaned") ? 0 : 1, 0);
    report.Add("plain " + base::Quote(prompt), models::PlainCaption(prompt) == Text(row, "plain") ? 0 : 1, 0);
  }
  return report;
}

absl::StatusOr<Report> RunSizes(const Case& test_case) {
  const absl::StatusOr<base::Json> content = ReadContent(test_case);
  if (!content.ok()) return content.status();
  Report report;
  const auto exact = [&](const std::string& what, int64_t actual, int64_t expected) {
    report.Add(what, actual == expected ? 0 : 1, 0);
  };
  constexpr std::pair<const char*, int64_t> kTables[] = {{"ASPECT_RATIO_256_BIN", 32},
                                                         {"ASPECT_RATIO_512_BIN", 64},
                                                         {"ASPECT_RATIO_1024_BIN", 128},
                                                         {"ASPECT_RATIO_2048_BIN", 256}};
  for (const base::Json& row : Field(*content, "classified").items()) {
    const int64_t height = Int(row, "height"), width = Int(row, "width");
    for (const auto& [name, sample_size] : kTables) {
      const control::ImageSize size =
          control::NearestSize(models::PixArtSizes(models::PixArtVariant::kSigma, sample_size), {height, width});
      exact(absl::StrCat(name, " height of ", height, "x", width), size.height, At(Field(row, name), 0));
      exact(absl::StrCat(name, " width of ", height, "x", width), size.width, At(Field(row, name), 1));
    }
    const control::ImageSize size = control::NearestSize(models::HunyuanSizes(), {height, width});
    exact("Hunyuan width", size.width, At(Field(row, "hunyuan_width_height"), 0));
    exact("Hunyuan height", size.height, At(Field(row, "hunyuan_width_height"), 1));
  }
  for (const base::Json& row : Field(*content, "hunyuan_rope_regions").items()) {
    const base::Json &grid = Field(row, "grid"), &region = Field(row, "region");
    if (region.items().size() != 2) throw std::runtime_error("a region of the case is not two corners");
    const models::HunyuanRopeRegion actual = models::HunyuanRopeRegionFor(At(grid, 0), At(grid, 1), Int(row, "base"));
    const std::string what = absl::StrCat("RoPE region of ", At(grid, 0), "x", At(grid, 1));
    exact(what, actual.top, At(region.items()[0], 0));
    exact(what, actual.left, At(region.items()[0], 1));
    exact(what, actual.bottom, At(region.items()[1], 0));
    exact(what, actual.right, At(region.items()[1], 1));
  }
  for (const base::Json& row : Field(*content, "flux_mu").items()) {
    const int64_t tokens = Int(row, "tokens");
    const double expected = Number(row, "mu");
    report.Add(absl::StrCat("mu of ", tokens),
               std::abs(runtime::DynamicShiftMu(runtime::DynamicShift{}, tokens) - expected) / expected, 1e-14);
  }
  return report;
}

absl::StatusOr<Report> RunImages(const Case& test_case) {
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  Report report;
  for (int i = 0; gold->contains(absl::StrCat(i, ".in")); ++i) {
    const at::Tensor& expected = gold->at(absl::StrCat(i, ".out"));
    const at::Tensor actual = runtime::ResizeAndCrop(gold->at(absl::StrCat(i, ".in")).to(test_case.device),
                                                     expected.size(2), expected.size(3));
    report.Add(absl::StrCat(i, ".out"), RelativeError(actual, expected), test_case.Tolerance("fp32"));
  }
  const at::Tensor values = gold->at("post.in").to(test_case.device);
  const at::Tensor pixels = runtime::ToPixels(values.reshape({1, 1, 1, -1}));
  report.Add("post.uint8", AbsoluteError(pixels.flatten(), gold->at("post.uint8")), 0);
  return report;
}

absl::StatusOr<Report> RunStrength(const Case& test_case) {
  const absl::StatusOr<base::Json> content = ReadContent(test_case);
  if (!content.ok()) return content.status();
  Report report;
  for (const base::Json& row : Field(*content, "rows").items()) {  // [steps, strength, first, run]
    const int64_t steps = At(row, 0), first = At(row, 2);
    const double strength = row.items()[1].AsNumber().value_or(-1);
    const bool right = control::FirstStepOfStrength(static_cast<int>(steps), strength) == first;
    report.Add(absl::StrCat(steps, " steps at ", strength), right && steps - first == At(row, 3) ? 0 : 1, 0);
  }
  return report;
}

bool IsSize(const absl::StatusOr<control::PictureSize>& size, const base::Json& expected) {
  return size.ok() && size->width == At(expected, 0) && size->height == At(expected, 1);
}

absl::StatusOr<Report> RunKontext(const Case& test_case) {
  const absl::StatusOr<base::Json> content = ReadContent(test_case);
  if (!content.ok()) return content.status();
  Report report;
  const std::span<const control::PictureSize> preferred = control::KontextPreferredSizes();
  const std::span<const base::Json> sizes = Field(*content, "preferred").items();
  report.Add("number of preferred sizes", sizes.size() == preferred.size() ? 0 : 1, 0);
  for (size_t i = 0; i < std::min(sizes.size(), preferred.size()); ++i) {
    report.Add(absl::StrCat("preferred ", i), IsSize(preferred[i], sizes[i]) ? 0 : 1, 0);
  }
  const auto size_of = [](const base::Json& row) {
    return control::PictureSize{.width = static_cast<int>(Int(row, "width")),
                                .height = static_cast<int>(Int(row, "height"))};
  };
  const auto exact = [&](const char* what, const control::PictureSize& asked,
                         const absl::StatusOr<control::PictureSize>& actual, const base::Json& expected) {
    report.Add(absl::StrCat(what, " of ", asked.width, "x", asked.height), IsSize(actual, expected) ? 0 : 1, 0);
  };
  for (const base::Json& row : Field(*content, "inputs").items()) {
    const control::PictureSize asked = size_of(row);
    exact("preferred size", asked, control::KontextPictureSize(asked, true), Field(row, "preferred"));
    exact("rounded size", asked, control::KontextPictureSize(asked, false), Field(row, "multiple_of_16"));
  }
  for (const base::Json& row : Field(*content, "outputs").items()) {
    const control::PictureSize asked = size_of(row);
    exact("result", asked, control::KontextResultSize(asked, Int(row, "max_area")), Field(row, "used"));
  }
  return report;
}

// Rows of sizes, in which a reference may be refused.
absl::StatusOr<Report> RunFlux2References(const Case& test_case) {
  ASSIGN_OR_RETURN(const base::Json content, ReadContent(test_case));
  Report report;
  for (const base::Json& row : Field(content, "rows").items()) {
    const control::PictureSize asked{.width = static_cast<int>(Int(row, "width")),
                                     .height = static_cast<int>(Int(row, "height"))};
    const std::string of = absl::StrCat(" of ", asked.width, "x", asked.height);
    const bool refused = !control::CheckReference(control::ReferenceFit::kFlux2, asked).ok();
    report.Add("refusal" + of, refused == (row.Find("refused") != nullptr) ? 0 : 1, 0);
    if (row.Find("refused") != nullptr) continue;
    const absl::StatusOr<control::ReferenceSize> size = control::SizeOfReference(control::ReferenceFit::kFlux2, asked);
    if (!size.ok()) return size.status();
    report.Add("scaled" + of, IsSize(size->scaled, Field(row, "scaled")) ? 0 : 1, 0);
    report.Add("read" + of, IsSize(size->read, Field(row, "cropped")) ? 0 : 1, 0);
    const bool middle = (size->scaled.width - size->read.width) / 2 == Int(row, "left") &&
                        (size->scaled.height - size->read.height) / 2 == Int(row, "top");
    report.Add("place" + of, middle ? 0 : 1, 0);
    report.Add("tokens" + of, size->read.width / 16 * (size->read.height / 16) == Int(row, "tokens") ? 0 : 1, 0);
  }
  return report;
}

// Each row has its own configuration of the scheduler.
absl::StatusOr<Report> RunFlowSchedules(const Case& test_case) {
  ASSIGN_OR_RETURN(const base::Json rows, ReadContent(test_case));
  Report report;
  for (const base::Json& row : rows.items()) {
    const std::string& family = Text(row, "family");
    if (family == "sana") continue;  // not built
    const int64_t tokens = Int(row, "tokens");
    const auto steps = static_cast<int>(Int(row, "steps"));
    ASSIGN_OR_RETURN(const runtime::SamplerConfig config,
                     SamplerOf("FlowMatchEulerDiscreteScheduler", Field(row, "config")));
    const double mu = family == "flux2" ? runtime::EmpiricalShiftMu(tokens, steps)
                                        : runtime::DynamicShiftMu(*config.Find<runtime::DynamicShift>(), tokens);
    ASSIGN_OR_RETURN(const runtime::Schedule schedule,
                     runtime::MakeSchedule(config, steps,
                                           {.mu = mu,
                                            .sigmas = family == "z_image" ? runtime::SingleLinearSigmas(steps)
                                                                          : runtime::LinearSigmas(steps)}));
    const std::string name = absl::StrCat(Text(row, "name"), ", ", tokens, " tokens, ", steps, " steps: ");
    report.Add(name + "mu", std::abs(mu - Number(row, "mu")), 1e-12);
    const auto compare = [&](const char* what, const std::vector<double>& actual) {
      std::vector<double> expected;
      for (const base::Json& value : Field(row, what).items()) expected.push_back(value.AsNumber().value_or(-1));
      report.Add(name + what, RelativeError(at::tensor(actual, at::kDouble), at::tensor(expected, at::kDouble)), 2e-6);
    };
    compare("sigmas", schedule.sigmas);
    compare("timesteps", schedule.timesteps);
  }
  return report;
}

// The sizes of Qwen-Image-Edit: of each row for the autoencoder and the text encoder, and what the processor makes of
// these sizes and of the picture itself within several limits.
absl::StatusOr<Report> RunQwenSizes(const Case& test_case) {
  ASSIGN_OR_RETURN(const base::Json content, ReadContent(test_case));
  Report report;
  for (const base::Json& row : Field(content, "rows").items()) {
    const control::PictureSize picture{.width = static_cast<int>(Int(row, "width")),
                                       .height = static_cast<int>(Int(row, "height"))};
    const std::string of = absl::StrCat(" of ", picture.width, "x", picture.height);
    // A size with a side of 0 and one that the processor refuses are errors here.
    const auto exact = [&](const std::string& what, const absl::StatusOr<control::PictureSize>& size,
                           const base::Json& expected) {
      const bool is_refused = expected.is_null() || At(expected, 0) == 0 || At(expected, 1) == 0;
      report.Add(what + of, (is_refused ? absl::IsInvalidArgument(size.status()) : IsSize(size, expected)) ? 0 : 1, 0);
    };
    const auto area = [&](int64_t pixels) { return control::SizeOfArea(picture, pixels); };
    const absl::StatusOr<control::PictureSize> sizes[] = {area(1024 * 1024), area(384 * 384), picture};
    exact("vae", sizes[0], Field(row, "vae"));
    exact("condition", sizes[1], Field(row, "condition"));
    for (const base::JsonMember& limit : Field(content, "limits").members()) {
      const control::ProcessorLimits limits{.min_pixels = At(limit.value, 0), .max_pixels = At(limit.value, 1)};
      constexpr const char* kParts[] = {"vae", "condition", "picture"};
      for (size_t part = 0; part < std::size(kParts); ++part) {
        const std::string name = absl::StrCat(kParts[part], ".", limit.key);
        absl::StatusOr<control::PictureSize> read = sizes[part];
        if (read.ok()) read = control::ProcessorSize(*read, limits);
        exact(name, read, Field(row, name));
      }
    }
  }
  return report;
}

// Windows and positions of Qwen2.5-VL.
absl::StatusOr<Report> RunPictureLayouts(const Case& test_case) {
  ASSIGN_OR_RETURN(const base::Json rows, ReadContent(test_case));
  Report report;
  for (const base::Json& row : rows.items()) {
    std::vector<models::PatchGrid> grids;
    for (const base::Json& grid : Field(row, "grids").items()) {
      grids.push_back({.rows = At(grid, 0), .columns = At(grid, 1)});
    }
    const auto exact = [&](const char* what, const std::vector<int64_t>& own, const base::Json& expected) {
      bool same = own.size() == expected.items().size();
      for (size_t i = 0; same && i < own.size(); ++i) same = own[i] == At(expected, i);
      report.Add(what, same ? 0 : 1, 0);
    };
    constexpr int64_t kPatch = 14;  // pixels
    const models::VisionWindows windows = models::WindowsOf(grids, Int(row, "window") / kPatch / models::kMerge);
    exact("window_index", windows.order, Field(row, "window_index"));
    std::vector<int64_t> ends = {0};
    for (const int64_t units : windows.units) ends.push_back(ends.back() + models::kMerge * models::kMerge * units);
    exact("cu_window_seqlens", ends, Field(row, "cu_window_seqlens"));
    constexpr int64_t kText = 0, kPicture = 1;
    std::vector<int64_t> ids;
    for (size_t i = 0; i <= grids.size(); ++i) {
      ids.insert(ids.end(), static_cast<size_t>(At(Field(row, "text"), i)), kText);
      if (i < grids.size()) ids.insert(ids.end(), static_cast<size_t>(grids[i].units()), kPicture);
    }
    const std::array<std::vector<int64_t>, 3> positions = models::PositionsOfText(ids, kPicture, grids);
    for (size_t axis = 0; axis < positions.size(); ++axis) {
      exact("position_ids", positions[axis], Field(row, "position_ids").items()[axis]);
    }
    const base::Json& patches = Field(row, "patch_positions");
    if (patches.items().empty()) continue;
    const models::PatchPositions own = models::PositionsOfPatches(grids);
    bool same = own.rows.size() == patches.items().size();
    for (size_t i = 0; same && i < own.rows.size(); ++i) {
      same = own.rows[i] == At(patches.items()[i], 0) && own.columns[i] == At(patches.items()[i], 1);
    }
    report.Add("patch_positions", same ? 0 : 1, 0);
  }
  return report;
}

// The values of all bytes for the autoencoder, and of each channel for the vision tower.
absl::StatusOr<Report> RunPixelTables(const Case& test_case) {
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  constexpr int kSide = 28;
  control::Frames picture{.width = kSide, .height = kSide, .bytes = {}};
  for (int i = 0; i < kSide * kSide * 3; ++i) picture.bytes.push_back(static_cast<uint8_t>(i / 3 % 256));
  Report report;
  const at::Tensor values = runtime::PictureValues(picture).flatten(2)[0][0].slice(0, 0, 256);
  report.Add("vae_table", AbsoluteError(values, gold.at("vae_table")), 0);
  // The means and deviations of the processor's published files.
  const models::PictureProcessor processor{.mean = {0.48145466, 0.4578275, 0.40821073},
                                           .deviation = {0.26862954, 0.26130258, 0.27577711}};
  const at::Tensor patches = processor.PatchesOf(picture).patches;  // [4, 3 · 2 · 14 · 14], of a square of patches
  const at::Tensor pixels = patches.view({2, 2, 3, 2, 14, 14}).select(3, 0).permute({2, 0, 3, 1, 4}).reshape({3, -1});
  report.Add("pixel_table", AbsoluteError(pixels.slice(1, 0, 256), gold.at("pixel_table")), 0);
  return report;
}

// Functions by the name in the case.
constexpr std::pair<std::string_view, absl::StatusOr<Report> (*)(const Case&)> kFunctions[] = {
    {"PixArtAlphaPipeline._text_preprocessing", RunCaptions},
    {"classify_height_width_bin, map_to_standard_shapes, get_resize_crop_region_for_grid, calculate_shift", RunSizes},
    {"PixArtImageProcessor.resize_and_crop_tensor, postprocess", RunImages},
    {"strength", RunStrength},
    {"kontext", RunKontext},
    {"references of FLUX.2", RunFlux2References},
    {"mu, sigmas and timesteps of the pipelines", RunFlowSchedules},
    {"sizes of Qwen-Image-Edit", RunQwenSizes},
    {"windows and positions of Qwen2.5-VL", RunPictureLayouts},
    {"8-bit values to floats", RunPixelTables},
};

}  // namespace

absl::StatusOr<Report> RunFunction(const Case& test_case) {
  const std::string name = test_case.Text("function");
  for (const auto& [known, run] : kFunctions) {
    if (name == known) return run(test_case);
  }
  return absl::UnimplementedError(absl::StrCat("function ", base::Quote(name)));
}

}  // namespace tessera::golden
