// Lists the sizes that PixArt was trained on.
//
// The tables are published with the PixArt models: an aspect ratio (height / width, as the table defines it) and the
// corresponding size in pixels. Pure and thread-safe.
#pragma once

#include <cstdint>

namespace tessera::control {
struct StandardSizes;
}

namespace tessera::models {

enum class PixArtVariant { kAlpha, kSigma };

// Returns the table for a transformer's sample_size: 32 has sizes of about 256 x 256, 64 of about 512, 128 of about
// 1024, and 256 (only PixArt-Sigma) of about 2048. Empty for any other sample_size, which has no binning.
control::StandardSizes PixArtSizes(PixArtVariant variant, int64_t sample_size);

}  // namespace tessera::models
