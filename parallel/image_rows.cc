#include "parallel/image_rows.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "base/macros/planted.h"
#include "parallel/functional.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kRowDim = 2;

at::Tensor NewRows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[kRowDim] = rows;
  return at::empty(shape, like.options().requires_grad(false));
}

struct Run {
  int64_t begin = 0, end = 0;

  int64_t size() const { return std::max<int64_t>(0, end - begin); }
  Run Common(const Run& other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
};

}  // namespace

RowWindow::RowWindow(at::Tensor above, at::Tensor rows, at::Tensor below, int64_t begin)
    : above_(std::move(above)), rows_(std::move(rows)), below_(std::move(below)), begin_(begin) {}

at::Tensor RowWindow::Slice(int64_t top, int64_t bottom) const {
  const Run wanted{top, bottom};
  std::vector<at::Tensor> parts;
  int64_t found = 0, begin = begin_ - above_.size(kRowDim);
  for (const at::Tensor& part : {above_, rows_, below_}) {
    const Run common = wanted.Common({begin, begin + part.size(kRowDim)});
    if (common.size() > 0) parts.push_back(part.slice(kRowDim, common.begin - begin, common.end - begin));
    found += common.size();
    begin += part.size(kRowDim);
  }
  TORCH_CHECK(found == wanted.size() && found > 0, "rows ", top, " to ", bottom, " are not in the window of ",
              rows_.sizes(), " from row ", begin_);
  return parts.size() == 1 ? parts[0] : at::cat(parts, kRowDim);
}

ImageRows::ImageRows(std::vector<int64_t> rows, Communicator& group) : rows_(std::move(rows)), group_(&group) {
  TORCH_CHECK(static_cast<int>(rows_.size()) == group.size(), "rows ", rows_, " for a group of ", group.size());
  for (const int r : c10::irange(group.size())) {
    TORCH_CHECK(rows_[r] >= 0, "negative number of rows in ", rows_);
    if (r < group.rank()) begin_ += rows_[r];
    height_ += rows_[r];
  }
}

ImageRows ImageRows::Enlarged(int64_t factor) const {
  std::vector<int64_t> rows = rows_;
  for (int64_t& count : rows) count *= factor;
  return ImageRows(std::move(rows), *group_);
}

ImageRows ImageRows::Reduced(int64_t factor) const {
  std::vector<int64_t> rows = rows_;
  for (int64_t& count : rows) {
    TORCH_CHECK(count % factor == 0, "rows ", rows_, " are not multiples of ", factor);
    count /= factor;
  }
  return ImageRows(std::move(rows), *group_);
}

at::Tensor ImageRows::Take(const at::Tensor& whole) const {
  TORCH_CHECK(whole.size(kRowDim) == height_, "rows ", rows_, " are not those of ", whole.sizes());
  return whole.slice(kRowDim, begin(), end());
}

RowWindow ImageRows::Widen(const at::Tensor& x, int64_t above, int64_t below) const {
  TORCH_CHECK(x.size(kRowDim) == end() - begin(), "rank ", group_->rank(), " holds ", x.sizes(), ", rows are ", rows_);
  // The rows above and below that a rank with the run `own` receives.
  const auto upper = [&](const Run& own) {
    return own.size() > 0 ? Run{std::max<int64_t>(0, own.begin - above), own.begin} : Run{};
  };
  const auto lower = [&](const Run& own) {
    return own.size() > 0 ? Run{own.end, std::min(height_, own.end + below)} : Run{};
  };
  const Run own{begin(), end()};
  const at::Tensor upper_rows = NewRows(x, upper(own).size()), lower_rows = NewRows(x, lower(own).size());
  if (group_->size() == 1) return RowWindow(upper_rows, x, lower_rows, own.begin);
  if (base::Planted("halo_omitted")) return RowWindow(upper_rows.zero_(), x, lower_rows.zero_(), own.begin);

  std::vector<at::Tensor> send, receive;
  Run other;
  for (const int r : c10::irange(group_->size())) {
    other = {other.end, other.end + rows_[r]};
    if (r == group_->rank()) {
      send.push_back(NewRows(x, 0));
      receive.push_back(send.back());
      continue;
    }
    const bool it_is_above = r < group_->rank();
    const Run sent = own.Common(it_is_above ? lower(other) : upper(other));
    send.push_back(x.narrow(kRowDim, sent.size() > 0 ? sent.begin - own.begin : 0, sent.size()));
    const Run wanted = it_is_above ? upper(own) : lower(own), got = other.Common(wanted);
    receive.push_back((it_is_above ? upper_rows : lower_rows)
                          .narrow(kRowDim, got.size() > 0 ? got.begin - wanted.begin : 0, got.size()));
  }
  group_->AllToAll(send, receive);
  return RowWindow(upper_rows, x, lower_rows, own.begin);
}

at::Tensor ImageRows::GatherOnFirst(const at::Tensor& x) const {
  if (group_->size() == 1) return x;
  const bool first = group_->rank() == 0;
  const at::Tensor nothing = NewRows(x, 0), whole = NewRows(x, first ? height_ : 0);
  std::vector<at::Tensor> send(rows_.size(), nothing), receive(rows_.size(), nothing);
  send[0] = x;
  if (first) receive = RankParts(whole, rows_, kRowDim);
  group_->AllToAll(send, receive);
  return whole;
}

at::Tensor ImageRows::GatherOnAll(const at::Tensor& x) const { return GatherDim(x, kRowDim, rows_, *group_); }

}  // namespace tessera::parallel
