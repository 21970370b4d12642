#include "models/pixart/resolution_bins.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr ResolutionBin kBins256[] = {
    {0.25, {128, 512}}, {0.28, {128, 464}}, {0.32, {144, 448}}, {0.33, {144, 432}}, {0.35, {144, 416}},
    {0.4, {160, 400}},  {0.42, {160, 384}}, {0.48, {176, 368}}, {0.5, {176, 352}},  {0.52, {176, 336}},
    {0.57, {192, 336}}, {0.6, {192, 320}},  {0.68, {208, 304}}, {0.72, {208, 288}}, {0.78, {224, 288}},
    {0.82, {224, 272}}, {0.88, {240, 272}}, {0.94, {240, 256}}, {1.0, {256, 256}},  {1.07, {256, 240}},
    {1.13, {272, 240}}, {1.21, {272, 224}}, {1.29, {288, 224}}, {1.38, {288, 208}}, {1.46, {304, 208}},
    {1.67, {320, 192}}, {1.75, {336, 192}}, {2.0, {352, 176}},  {2.09, {368, 176}}, {2.4, {384, 160}},
    {2.5, {400, 160}},  {3.0, {432, 144}},  {4.0, {512, 128}},
};

constexpr ResolutionBin kBins512[] = {
    {0.25, {256, 1024}}, {0.28, {256, 928}}, {0.32, {288, 896}}, {0.33, {288, 864}}, {0.35, {288, 832}},
    {0.4, {320, 800}},   {0.42, {320, 768}}, {0.48, {352, 736}}, {0.5, {352, 704}},  {0.52, {352, 672}},
    {0.57, {384, 672}},  {0.6, {384, 640}},  {0.68, {416, 608}}, {0.72, {416, 576}}, {0.78, {448, 576}},
    {0.82, {448, 544}},  {0.88, {480, 544}}, {0.94, {480, 512}}, {1.0, {512, 512}},  {1.07, {512, 480}},
    {1.13, {544, 480}},  {1.21, {544, 448}}, {1.29, {576, 448}}, {1.38, {576, 416}}, {1.46, {608, 416}},
    {1.67, {640, 384}},  {1.75, {672, 384}}, {2.0, {704, 352}},  {2.09, {736, 352}}, {2.4, {768, 320}},
    {2.5, {800, 320}},   {3.0, {864, 288}},  {4.0, {1024, 256}},
};

constexpr ResolutionBin kBins1024[] = {
    {0.25, {512, 2048}}, {0.28, {512, 1856}}, {0.32, {576, 1792}}, {0.33, {576, 1728}}, {0.35, {576, 1664}},
    {0.4, {640, 1600}},  {0.42, {640, 1536}}, {0.48, {704, 1472}}, {0.5, {704, 1408}},  {0.52, {704, 1344}},
    {0.57, {768, 1344}}, {0.6, {768, 1280}},  {0.68, {832, 1216}}, {0.72, {832, 1152}}, {0.78, {896, 1152}},
    {0.82, {896, 1088}}, {0.88, {960, 1088}}, {0.94, {960, 1024}}, {1.0, {1024, 1024}}, {1.07, {1024, 960}},
    {1.13, {1088, 960}}, {1.21, {1088, 896}}, {1.29, {1152, 896}}, {1.38, {1152, 832}}, {1.46, {1216, 832}},
    {1.67, {1280, 768}}, {1.75, {1344, 768}}, {2.0, {1408, 704}},  {2.09, {1472, 704}}, {2.4, {1536, 640}},
    {2.5, {1600, 640}},  {3.0, {1728, 576}},  {4.0, {2048, 512}},
};

constexpr ResolutionBin kBins2048[] = {
    {0.25, {1024, 4096}}, {0.26, {1024, 3968}}, {0.27, {1024, 3840}}, {0.28, {1024, 3712}}, {0.32, {1152, 3584}},
    {0.33, {1152, 3456}}, {0.35, {1152, 3328}}, {0.4, {1280, 3200}},  {0.42, {1280, 3072}}, {0.48, {1408, 2944}},
    {0.5, {1408, 2816}},  {0.52, {1408, 2688}}, {0.57, {1536, 2688}}, {0.6, {1536, 2560}},  {0.68, {1664, 2432}},
    {0.72, {1664, 2304}}, {0.78, {1792, 2304}}, {0.82, {1792, 2176}}, {0.88, {1920, 2176}}, {0.94, {1920, 2048}},
    {1.0, {2048, 2048}},  {1.07, {2048, 1920}}, {1.13, {2176, 1920}}, {1.21, {2176, 1792}}, {1.29, {2304, 1792}},
    {1.38, {2304, 1664}}, {1.46, {2432, 1664}}, {1.67, {2560, 1536}}, {1.75, {2688, 1536}}, {2.0, {2816, 1408}},
    {2.09, {2944, 1408}}, {2.4, {3072, 1280}},  {2.5, {3200, 1280}},  {2.89, {3328, 1152}}, {3.0, {3456, 1152}},
    {3.11, {3584, 1152}}, {3.62, {3712, 1024}}, {3.75, {3840, 1024}}, {3.88, {3968, 1024}}, {4.0, {4096, 1024}},
};

}  // namespace

std::optional<std::span<const ResolutionBin>> BinTable(PixArtVariant variant, int64_t sample_size) {
  switch (sample_size) {
    case 32:
      return kBins256;
    case 64:
      return kBins512;
    case 128:
      return kBins1024;
    case 256:
      if (variant == PixArtVariant::kSigma) return kBins2048;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

BinnedImageSize ClassifySize(int64_t height, int64_t width, std::span<const ResolutionBin> table) {
  const double ratio = static_cast<double>(height) / static_cast<double>(width);
  return std::min_element(table.begin(), table.end(),
                          [ratio](const ResolutionBin& a, const ResolutionBin& b) {
                            return std::abs(a.aspect_ratio - ratio) < std::abs(b.aspect_ratio - ratio);
                          })
      ->size;
}

ResizeAndCropPlan PlanResizeAndCrop(const BinnedImageSize& original, const BinnedImageSize& requested) {
  if (original == requested) return {.resized = original};
  const double ratio = std::max(static_cast<double>(requested.height) / static_cast<double>(original.height),
                                static_cast<double>(requested.width) / static_cast<double>(original.width));
  const auto scale = [ratio](int64_t from, int64_t at_least) {
    return std::max(at_least, static_cast<int64_t>(static_cast<double>(from) * ratio));
  };
  ResizeAndCropPlan plan;
  plan.resized = {.height = scale(original.height, requested.height), .width = scale(original.width, requested.width)};
  plan.top = (plan.resized.height - requested.height) / 2;
  plan.left = (plan.resized.width - requested.width) / 2;
  return plan;
}

}  // namespace tessera
