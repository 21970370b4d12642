// Lists the classes of image codecs.
#pragma once

#include <span>
#include <string_view>

#include "models/autoencoder/image_codec.h"

namespace tessera::models {

std::span<const ImageCodecEntry> ImageCodecs();

// Returns the entry of a class, or null if there is none.
const ImageCodecEntry* FindImageCodec(std::string_view class_name);

}  // namespace tessera::models
