// Small functions: prompt cleaning, tables of sizes, conversion to 8 bit.
#include "absl/strings/str_cat.h"
#include "models/hunyuandit/image_sizes.h"
#include "models/pixart/caption_cleaning.h"
#include "models/pixart/resolution_bins.h"
#include "models/weights/file.h"
#include "runtime/image_output.h"
#include "runtime/samplers/schedule.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

absl::StatusOr<Report> RunCaptions(const Json& rows) {
  Report report;
  for (const Json& row : rows.items()) {
    const std::string& prompt = *row.Find("prompt")->AsString();
    report.Add("cleaned " + Quote(prompt), CleanCaption(prompt) == *row.Find("cleaned")->AsString() ? 0 : 1, 0);
    report.Add("plain " + Quote(prompt), PlainCaption(prompt) == *row.Find("plain")->AsString() ? 0 : 1, 0);
  }
  return report;
}

int64_t At(const Json& list, size_t index) {
  const Json& item = list.items()[index];
  return static_cast<int64_t>(item.AsNumber().value_or(-1));
}

absl::StatusOr<Report> RunSizes(const Json& content) {
  Report report;
  const auto exact = [&](const std::string& what, int64_t actual, int64_t expected) {
    report.Add(what, actual == expected ? 0 : 1, 0);
  };
  constexpr std::pair<const char*, int64_t> kTables[] = {{"ASPECT_RATIO_256_BIN", 32},
                                                         {"ASPECT_RATIO_512_BIN", 64},
                                                         {"ASPECT_RATIO_1024_BIN", 128},
                                                         {"ASPECT_RATIO_2048_BIN", 256}};
  for (const Json& row : content.Find("classified")->items()) {
    const int64_t height = *row.Find("height")->AsInt(), width = *row.Find("width")->AsInt();
    for (const auto& [name, sample_size] : kTables) {
      const BinnedImageSize size = ClassifySize(height, width, *BinTable(PixArtVariant::kSigma, sample_size));
      exact(absl::StrCat(name, " height of ", height, "x", width), size.height, At(*row.Find(name), 0));
      exact(absl::StrCat(name, " width of ", height, "x", width), size.width, At(*row.Find(name), 1));
    }
    const HunyuanSize size = HunyuanStandardSize(height, width);
    exact("Hunyuan width", size.width, At(*row.Find("hunyuan_width_height"), 0));
    exact("Hunyuan height", size.height, At(*row.Find("hunyuan_width_height"), 1));
  }
  for (const Json& row : content.Find("hunyuan_rope_regions")->items()) {
    const Json &grid = *row.Find("grid"), &region = *row.Find("region");
    const HunyuanRopeRegion actual = HunyuanRopeRegionFor(At(grid, 0), At(grid, 1), *row.Find("base")->AsInt());
    const std::string what = absl::StrCat("RoPE region of ", At(grid, 0), "x", At(grid, 1));
    exact(what, actual.top, At(region.items()[0], 0));
    exact(what, actual.left, At(region.items()[0], 1));
    exact(what, actual.bottom, At(region.items()[1], 0));
    exact(what, actual.right, At(region.items()[1], 1));
  }
  const SamplerConfig flux = DefaultSamplerConfig(SamplerClass::kFlowEuler);
  for (const Json& row : content.Find("flux_mu")->items()) {
    const int64_t tokens = *row.Find("tokens")->AsInt();
    const double expected = *row.Find("mu")->AsNumber();
    report.Add(absl::StrCat("mu of ", tokens), std::abs(DynamicShiftMu(flux, tokens) - expected) / expected, 1e-14);
  }
  return report;
}

absl::StatusOr<Report> RunImages(const Case& test_case) {
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  Report report;
  for (int i = 0; gold->contains(absl::StrCat(i, ".in")); ++i) {
    const at::Tensor& expected = gold->at(absl::StrCat(i, ".out"));
    const at::Tensor actual =
        ResizeAndCrop(gold->at(absl::StrCat(i, ".in")).to(test_case.device), expected.size(2), expected.size(3));
    report.Add(absl::StrCat(i, ".out"), RelativeError(actual, expected), test_case.Tolerance("fp32"));
  }
  const at::Tensor values = gold->at("post.in").to(test_case.device);
  const at::Tensor pixels = ToPixels(values.reshape({1, 1, 1, -1}));
  report.Add("post.uint8", AbsoluteError(pixels.flatten(), gold->at("post.uint8")), 0);
  return report;
}

}  // namespace

absl::StatusOr<Report> RunFunction(const Case& test_case) {
  const std::string name = test_case.Text("function");
  if (test_case.file.ends_with(".safetensors")) return RunImages(test_case);
  const absl::StatusOr<std::string> text = ReadWholeFile(test_case.Path(test_case.file), test_case.file, kMaxJsonBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> content = ParseJson(*text, test_case.file);
  if (!content.ok()) return content.status();
  if (name.find("_text_preprocessing") != std::string::npos) return RunCaptions(*content);
  if (content->Find("classified") != nullptr) return RunSizes(*content);
  return absl::UnimplementedError(name);
}

}  // namespace tessera::golden
