// Many images as one picture of small ones, row by row. Pure.
#pragma once

#include "control/image.h"

namespace tessera::client {

class ContactSheet {
 public:
  static constexpr int kColumns = 16;
  static constexpr int kMostCells = kColumns * 16;
  static constexpr int kCell = 128;  // pixels
  static constexpr int kGap = 4;     // of a cell, to the right and below

  // 1 to kMostCells; as many columns and rows as they need.
  explicit ContactSheet(int cells) : ContactSheet(cells, kColumns, kCell) {}
  // At most so many columns of cells of another size, which is more than the gap.
  ContactSheet(int cells, int columns, int cell);

  // Of `cells` pictures whose longest side is that, about as many rows as columns: pictures stay as they are unless the
  // sheet would be too large.
  static ContactSheet Square(int cells, int longest_side);

  // Shrunk to the cell, never enlarged, and in its middle. Different cells may be set on different threads at once.
  void Put(int cell, const control::Image& image);
  void PutFailure(int cell);  // a dark red cell

  const control::Image& image() const { return sheet_; }

 private:
  void Fill(int cell, const control::Image& image);

  int columns_, picture_;  // picture_: pixels of a cell without its gap
  control::Image sheet_;
};

// The mean of the pixels that each pixel of the smaller image covers. 1 to the image's own width and height.
control::Image Shrink(const control::Image& image, int width, int height);

}  // namespace tessera::client
