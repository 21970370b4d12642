#include "client/cli/batch/disk_estimate.h"

namespace tessera::client {
namespace {

constexpr double kBytesOfAPixel = 3;

double PartOf(server::ImageFormat format) {
  switch (format) {
    case server::ImageFormat::kPng:
      return 0.6;
    case server::ImageFormat::kWebp:
      return 0.5;
    case server::ImageFormat::kJpeg:
      break;
  }
  return 0.3;
}

}  // namespace

void DiskEstimate::Learn(const RunImage& image) {
  const absl::StatusOr<server::ImageFormat> format = server::FormatFromPath(image.file);
  if (!format.ok()) return;
  for (Sum* sum : {&formats_[*format], &sizes_[{*format, image.width, image.height}]}) {
    sum->bytes += static_cast<double>(image.bytes);
    sum->pixels += static_cast<double>(image.width) * image.height;
  }
}

void DiskEstimate::Add(int64_t width, int64_t height, server::ImageFormat format, int64_t images) {
  double of_a_pixel = kBytesOfAPixel * PartOf(format);
  if (const auto known = sizes_.find({format, width, height}); known != sizes_.end()) {
    of_a_pixel = known->second.bytes / known->second.pixels;
  } else if (const auto alike = formats_.find(format); alike != formats_.end()) {
    of_a_pixel = alike->second.bytes / alike->second.pixels;
  }
  bytes_ += of_a_pixel * static_cast<double>(width) * static_cast<double>(height) * static_cast<double>(images);
}

}  // namespace tessera::client
