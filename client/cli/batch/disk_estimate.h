// What the images of a run that are not made yet will take on the disk. Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>

#include "client/cli/batch/run_journal.h"
#include "server/image/image_file.h"

namespace tessera::client {

class DiskEstimate {
 public:
  // An image of the run that is there: those of its size take as much, others of its format as much a pixel.
  void Learn(const RunImage& image);

  // Images to make; those that were learnt before count. Without any of the format an image is taken for a part of its
  // pixels' three bytes: 0.6 for PNG, 0.5 for WebP, which loses nothing either, 0.3 for JPEG.
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
