// Computes what decoding an image costs from the shape of the decoder. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::control {
struct ModelCost;
}

namespace tessera::models {

// A decoder of convolutions with 3 x 3 windows. Each level except the first, which has the image's size, ends with an
// enlargement to twice the size. Before the coarsest level are two residual blocks.
struct DecoderShape {
  struct Level {
    int64_t in = 0, out = 0;  // channels before and after the first residual block
    int64_t enlarged = 0;     // channels of the enlarged image; not used for the first level
  };

  std::vector<Level> levels;  // finest first
  int64_t residuals = 0;      // of a level
  int64_t latent_channels = 0, image_channels = 0;
  bool attention = true;        // in the middle
  bool post_quant_conv = true;  // a 1 x 1 convolution of the latents
};

// Fills in what decoding costs: the operations of all convolutions and of the projections around attention, and the
// values that are alive at once. Those are of a level's first residual block: its input, its branch, its shortcut and
// their sum, which was measured in main memory for widths of 128 to 512 and of 32 to 64.
void DescribeDecoding(const DecoderShape& decoder, control::ModelCost& cost);

}  // namespace tessera::models
