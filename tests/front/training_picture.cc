#include "tests/front/training_picture.h"

#include <cstdint>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"

namespace tessera {

void WriteTrainingPicture(const std::string& folder, int index) {
  control::Frames image{.width = 64, .height = index % 3 == 2 ? 96 : 64};
  for (int i = 0; i < image.width * image.height * 3; ++i) {
    image.bytes.push_back(static_cast<uint8_t>((i * (index + 3) / 7 + 40 * index) % 256));
  }
  const std::string name = absl::StrCat(folder, "/", index);
  std::ofstream(name + ".png", std::ios::binary) << *server::EncodeImage(image, server::ImageFormat::kPng, {});
  std::ofstream(name + ".txt") << (index % 2 == 0 ? "a red [trigger]" : "two small houses by the sea in the evening");
}

}  // namespace tessera
