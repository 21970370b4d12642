// DiskEstimate predicts the disk space of a run's remaining images. Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>

#include "client/cli/batch/run_journal.h"
#include "server/image/image_format.h"

namespace tessera::client {

class DiskEstimate {
 public:
  // Records an existing image: images of the same size are assumed to take as much, other images of its format as much
  // per pixel.
  void Learn(const RunImage& image);

  // Adds images to make, estimated from the images recorded so far. Without a recorded image of the format, an image is
  // assumed to take this part of its three bytes per pixel: 0.6 for PNG, 0.5 for lossless WebP, 0.3 for JPEG.
  void Add(int64_t width, int64_t height, server::ImageFormat format, int64_t images);

  uint64_t bytes() const { return static_cast<uint64_t>(std::round(bytes_)); }

 private:
  struct Sum {
    double bytes = 0;
    double pixels = 0;
  };

  std::map<server::ImageFormat, Sum> formats_;
  std::map<std::tuple<server::ImageFormat, int64_t, int64_t>, Sum> sizes_;  // by format, width and height
  double bytes_ = 0;
};

}  // namespace tessera::client
