#include "models/autoencoder/image_codec_table.h"

#include <algorithm>
#include <iterator>

#include "models/autoencoder/autoencoder_kl.h"
#include "models/autoencoder/qwen_autoencoder.h"

namespace tessera::models {
namespace {

constexpr ImageCodecEntry kImageCodecs[] = {
    {"AutoencoderKL", ReadAutoencoderKl},
    {"AutoencoderKLFlux2", ReadAutoencoderKlFlux2},
    {"AutoencoderKLQwenImage", ReadAutoencoderKlQwenImage},
};

}  // namespace

std::span<const ImageCodecEntry> ImageCodecs() { return kImageCodecs; }

const ImageCodecEntry* FindImageCodec(std::string_view class_name) {
  const auto* entry = std::ranges::find(kImageCodecs, class_name, &ImageCodecEntry::class_name);
  return entry == std::end(kImageCodecs) ? nullptr : entry;
}

}  // namespace tessera::models
