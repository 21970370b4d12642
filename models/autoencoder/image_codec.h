// ImageCodec is the interface of an autoencoder of images: it maps images to the latents that the transformer uses and
// back. Codecs are found by class name; a codec is its files and one row in image_codec_table.cc.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/image_codec_config.h"
#include "models/weights/model_folder.h"
#include "parallel/forward_context.h"

namespace tessera::models {

// A codec's encoding of images in the transformer's latent space: each value is drawn from a normal distribution of
// this mean and standard deviation. [b, c, h, w] in max(fp32, dtype).
struct LatentPosterior {
  at::Tensor mean, deviation;
};

class ImageCodec {
 public:
  virtual ~ImageCodec() = default;

  // latents [b, latent channels, h, w], the same on every rank of context.world → image [b, 3, h·factor, w·factor],
  // about [−1, 1], on the first rank; the other ranks return an image without rows.
  virtual at::Tensor Decode(const at::Tensor& latents, const parallel::ForwardContext& context) const = 0;

  // image [b, 3, H, W] in [−1, 1], the same on every rank of context.world, sides multiples of the factor → posterior,
  // the same on every rank.
  virtual LatentPosterior Encode(const at::Tensor& image, const parallel::ForwardContext& context) const = 0;
};

struct ImageCodecEntry {
  std::string_view class_name;  // of model_index.json
  // Reads config.json. Returns InvalidArgument with the field, its value and the valid values.
  absl::StatusOr<ImageCodecConfig> (*read)(base::ConfigReader& reader);
};

absl::StatusOr<ImageCodecConfig> ReadAutoencoderKl(base::ConfigReader& reader);

// Returns the entry of the component's class, or InvalidArgument with the class and the known classes.
absl::StatusOr<const ImageCodecEntry*> FindImageCodec(const ModelFolder& folder, const std::string& component);

}  // namespace tessera::models
