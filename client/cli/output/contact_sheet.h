// ContactSheet arranges many reduced images in one RGB picture, row by row. Of an image with several frames it shows
// the first, without alpha. Pure.
#pragma once

#include "control/pictures/picture_frames.h"

namespace tessera::client {

class ContactSheet {
 public:
  static constexpr int kColumns = 16;
  static constexpr int kMostCells = kColumns * 16;
  static constexpr int kCell = 128;  // pixels
  static constexpr int kGap = 4;     // pixels of each cell, at its right and bottom edge

  // `cells` is 1 to kMostCells; the sheet has as many columns and rows as they need.
  explicit ContactSheet(int cells) : ContactSheet(cells, kColumns, kCell) {}
  // A sheet of at most `columns` columns with cells of `cell` pixels, which must exceed the gap.
  ContactSheet(int cells, int columns, int cell);

  // A sheet for `cells` pictures with this longest side, with about as many rows as columns. Pictures keep their size
  // unless the sheet would become too large.
  static ContactSheet Square(int cells, int longest_side);

  // Reduces the image to the cell, never enlarging it, and centers it. Different cells may be set concurrently.
  void Put(int cell, const control::Frames& image);
  void PutFailure(int cell);  // a dark red cell

  const control::Frames& image() const { return sheet_; }

 private:
  void Fill(int cell, const control::Frames& image);

  int columns_, picture_;  // picture_: pixels of a cell without its gap
  control::Frames sheet_;
};

// Returns RGB. Each pixel of the result is the mean of the pixels that it covers. `width` and `height` are 1 to those
// of `image`.
control::Frames Shrink(const control::Frames& image, int width, int height);

}  // namespace tessera::client
