#include "models/autoencoder/image_codec.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/autoencoder/image_codec_table.h"
#include "models/loading/component.h"

namespace tessera::models {

absl::StatusOr<const ImageCodecEntry*> FindImageCodec(const ModelFolder& folder, const std::string& component) {
  std::vector<std::string_view> classes;
  std::ranges::transform(ImageCodecs(), std::back_inserter(classes), &ImageCodecEntry::class_name);
  RETURN_IF_ERROR(CheckClass(folder, component, classes));
  return FindImageCodec(folder.components().at(component).class_name);
}

}  // namespace tessera::models
