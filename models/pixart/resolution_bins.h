// The sizes PixArt was trained on, and how a request of another size is served with one of them.
//
// Published tables of the PixArt models: an aspect ratio (height / width, as the table words it) and the size in pixels
// that belongs to it. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tessera::models {

struct BinnedImageSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const BinnedImageSize&) const = default;
};

struct ResolutionBin {
  double aspect_ratio;
  BinnedImageSize size;
};

enum class PixArtVariant { kAlpha, kSigma };

// The table of a transformer's sample_size: 32 has the sizes about 256 x 256, 64 about 512, 128 about 1024, and of
// PixArt-Sigma 256 about 2048. Nothing for every other sample_size: there is no binning then.
std::optional<std::span<const ResolutionBin>> BinTable(PixArtVariant variant, int64_t sample_size);

// The size of the bin whose aspect ratio is nearest to height / width; the first of equally near ones. Height and width
// are positive, the table is not empty.
BinnedImageSize ClassifySize(int64_t height, int64_t width, std::span<const ResolutionBin> table);

}  // namespace tessera::models
