// Many images as one picture of small ones, row by row. Pure.
#pragma once

#include "control/image.h"

namespace tessera::client {

class ContactSheet {
 public:
  static constexpr int kColumns = 16;
  static constexpr int kMostCells = kColumns * 16;
  static constexpr int kCell = 128;  // pixels, of which the last few to the right and below are a gap

  // 1 to kMostCells; as many columns and rows as they need.
  explicit ContactSheet(int cells);

  // Shrunk to the cell, never enlarged, and in its middle. Different cells may be set on different threads at once.
  void Put(int cell, const control::Image& image);
  void PutFailure(int cell);  // a dark red cell

  const control::Image& image() const { return sheet_; }

 private:
  void Fill(int cell, const control::Image& image);

  control::Image sheet_;
};

// The mean of the pixels that each pixel of the smaller image covers. 1 to the image's own width and height.
control::Image Shrink(const control::Image& image, int width, int height);

}  // namespace tessera::client
