// Parses config.json of an AutoencoderKL. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::control {
struct ModelCost;
}

namespace tessera::models {

struct AutoencoderConfig {
  int64_t image_channels = 3;
  int64_t latent_channels = 4;
  std::vector<int64_t> widths;  // block_out_channels, finest first
  int64_t layers_per_block = 1;
  int64_t groups = 32;
  bool quant_conv = true;
  bool post_quant_conv = true;
  bool mid_attention = true;
  double scaling_factor = 0.18215;
  double shift_factor = 0;

  // Pixels per latent along one side: every level except the last halves the image.
  int64_t factor() const { return int64_t{1} << (widths.size() - 1); }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<AutoencoderConfig> ParseAutoencoderConfig(base::ConfigReader& reader);

// Fills in what decoding costs: the operations of all convolutions and of the projections around attention, and the
// values that are alive at once. Those are of a level's first residual block: its input, its branch, its shortcut and
// their sum, which was measured in main memory for widths of 128 to 512 and of 32 to 64.
void DescribeDecoding(const AutoencoderConfig& config, control::ModelCost& cost);

}  // namespace tessera::models
