// ImageRows describes how the rows of one image are distributed over a group of ranks: of every tensor [b, c, h, w]
// that is computed from the image, each rank holds a run of rows, in rank order. Runs may be uneven and empty. For
// inference only: no function has a gradient.
//
// A value type; the group must outlive it. Every rank of the group makes the same calls in the same order.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// This rank's rows of a tensor with the adjacent rows that it received.
class RowWindow {
 public:
  // `rows` are the image's rows starting at `begin`; `above` and `below` are adjacent to them.
  RowWindow(at::Tensor above, at::Tensor rows, at::Tensor below, int64_t begin);

  // Returns rows [top, bottom) of the image, which must be within the window; a view if this rank holds all of them.
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
  int64_t begin() const { return begin_; }    // this rank holds rows [begin, end)
  int64_t end() const { return begin_ + rows_[static_cast<size_t>(group_->rank())]; }

  // Returns the distribution of the same image with `factor` times as many rows.
  ImageRows Enlarged(int64_t factor) const;
  // Its inverse. Every rank's number of rows must be a multiple of `factor`.
  ImageRows Reduced(int64_t factor) const;

  // Returns a view of this rank's rows of `whole`, which every rank holds.
  at::Tensor Take(const at::Tensor& whole) const;

  // Returns `x` with up to `above` and `below` adjacent rows of the image, fewer at its edges; a rank without rows
  // receives none. Makes one all-to-all, in which a rank sends only to the ranks with the adjacent rows.
  RowWindow Widen(const at::Tensor& x, int64_t above, int64_t below) const;

  // Returns the whole image on the first rank, and a tensor without rows on the others.
  at::Tensor GatherOnFirst(const at::Tensor& x) const;
  // Returns the whole image on every rank.
  at::Tensor GatherOnAll(const at::Tensor& x) const;

 private:
  std::vector<int64_t> rows_;
  Communicator* group_;
  int64_t height_ = 0, begin_ = 0;
};

}  // namespace tessera::parallel
