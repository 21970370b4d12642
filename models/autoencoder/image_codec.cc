#include "models/autoencoder/image_codec.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/loading/component.h"

namespace tessera::models {
namespace {

constexpr ImageCodecEntry kImageCodecs[] = {
    {"AutoencoderKL", ReadAutoencoderKl},
};

}  // namespace

absl::StatusOr<const ImageCodecEntry*> FindImageCodec(const ModelFolder& folder, const std::string& component) {
  std::vector<std::string_view> classes;
  std::ranges::transform(kImageCodecs, std::back_inserter(classes), &ImageCodecEntry::class_name);
  RETURN_IF_ERROR(CheckClass(folder, component, classes));
  const std::string& class_name = folder.components().at(component).class_name;
  return std::ranges::find(kImageCodecs, class_name, &ImageCodecEntry::class_name);
}

}  // namespace tessera::models
