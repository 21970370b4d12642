// Lists the sizes that PixArt was trained on and selects one for a request of another size.
//
// The tables are published with the PixArt models: an aspect ratio (height / width, as the table defines it) and the
// corresponding size in pixels. Pure and thread-safe.
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

// Returns the table for a transformer's sample_size: 32 has sizes of about 256 x 256, 64 of about 512, 128 of about
// 1024, and 256 (only PixArt-Sigma) of about 2048. Nothing for any other sample_size, which has no binning.
std::optional<std::span<const ResolutionBin>> BinTable(PixArtVariant variant, int64_t sample_size);

// Returns the size of the bin whose aspect ratio is nearest to height / width, the first if several are equally near.
// Height and width must be positive and the table not empty.
BinnedImageSize ClassifySize(int64_t height, int64_t width, std::span<const ResolutionBin> table);

}  // namespace tessera::models
