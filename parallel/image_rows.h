// The rows of one image, spread over a group of ranks: each rank holds a run of rows, in the order of the ranks, of
// every tensor [b, c, h, w] that is made of the image. Runs may be uneven and empty. Inference only: nothing here has a
// gradient.
//
// A value; the group must outlive it. Every rank of the group makes the same calls in the same order.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// This rank's rows of a tensor and those beside them that it was sent.
class RowWindow {
 public:
  // `rows`: those of the image from `begin` on; `above` and `below` continue it.
  RowWindow(at::Tensor above, at::Tensor rows, at::Tensor below, int64_t begin);

  // Rows [top, bottom) of the image, which lie within the window; a view where they are all this rank's own.
  at::Tensor Slice(int64_t top, int64_t bottom) const;

 private:
  at::Tensor above_, rows_, below_;
  int64_t begin_;
};

class ImageRows {
 public:
  // Rank r of the group holds rows[r] rows.
  ImageRows(std::vector<int64_t> rows, Communicator& group);

  Communicator& group() const { return *group_; }
  at::IntArrayRef rows() const { return rows_; }
  int64_t height() const { return height_; }  // of the whole image
  int64_t begin() const { return begin_; }    // this rank's rows: [begin, end)
  int64_t end() const { return begin_ + rows_[static_cast<size_t>(group_->rank())]; }

  // The rows of the same image with `factor` times as many of them.
  ImageRows Enlarged(int64_t factor) const;

  // This rank's rows of what every rank holds whole; a view.
  at::Tensor Take(const at::Tensor& whole) const;

  // `x` with up to `above` and `below` more rows of the image, as far as there are any; a rank without rows gets none.
  // One all-to-all, in which a rank sends to those beside it only.
  RowWindow Widen(const at::Tensor& x, int64_t above, int64_t below) const;

  // The whole image on the first rank; on the others a tensor without rows.
  at::Tensor GatherOnFirst(const at::Tensor& x) const;

 private:
  std::vector<int64_t> rows_;
  Communicator* group_;
  int64_t height_ = 0, begin_ = 0;
};

}  // namespace tessera::parallel
