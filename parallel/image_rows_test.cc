#include "parallel/image_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/support/thread_ranks.h"

namespace tessera::parallel {
namespace {

at::Tensor Image(int64_t height) { return at::arange(2 * 3 * height * 5, at::kDouble).view({2, 3, height, 5}); }

struct Spread {
  std::vector<int64_t> rows;
  int64_t above, below;
};

class ImageRowsTest : public testing::TestWithParam<Spread> {};

TEST_P(ImageRowsTest, AWindowIsThePartOfTheImageThatWasAskedFor) {
  const auto& [rows, above, below] = GetParam();
  const int ranks = static_cast<int>(rows.size());
  RunRanks(ranks, [&](ThreadRank& rank) {
    const ImageRows image(rows, rank.world());
    const at::Tensor whole = Image(image.height());
    const RowWindow window = image.Widen(image.Take(whole), above, below);
    if (image.begin() == image.end()) return;
    const int64_t top = std::max<int64_t>(0, image.begin() - above),
                  bottom = std::min(image.height(), image.end() + below);
    for (int64_t first = top; first < bottom; ++first) {
      for (int64_t last = first + 1; last <= bottom; ++last) {
        EXPECT_TRUE(at::equal(window.Slice(first, last), whole.slice(2, first, last))) << first << " to " << last;
      }
    }
    EXPECT_THROW(window.Slice(top, bottom + 1), c10::Error);
    EXPECT_THROW(window.Slice(top - 1, bottom), c10::Error);
  });
}

TEST_P(ImageRowsTest, OnlyTheRowsThatOthersLackAreSent) {
  const auto& [rows, above, below] = GetParam();
  const int ranks = static_cast<int>(rows.size());
  int64_t sent = 0, lacking = 0;
  std::mutex mutex;
  RunRanks(ranks, [&](ThreadRank& rank) {
    const ImageRows image(rows, rank.world());
    image.Widen(image.Take(Image(image.height())), above, below);
    const std::lock_guard lock(mutex);
    sent += rank.world().count(Collective::kAllToAll).bytes;
    if (image.begin() < image.end()) {
      lacking += std::min(above, image.begin()) + std::min(below, image.height() - image.end());
    }
  });
  EXPECT_EQ(sent, lacking * 2 * 3 * 5 * 8);
}

TEST_P(ImageRowsTest, TheFirstRankGathersTheImageAndTheOthersNoRow) {
  const std::vector<int64_t>& rows = GetParam().rows;
  RunRanks(static_cast<int>(rows.size()), [&](ThreadRank& rank) {
    const ImageRows image = ImageRows(rows, rank.world()).Enlarged(2);
    const at::Tensor whole = Image(image.height()), gathered = image.GatherOnFirst(image.Take(whole));
    EXPECT_TRUE(at::equal(gathered, rank.rank() == 0 ? whole : whole.slice(2, 0, 0)));
  });
}

// Even, uneven, empty at the end and in between, and fewer rows than a neighbour requests.
INSTANTIATE_TEST_SUITE_P(Spreads, ImageRowsTest,
                         testing::Values(Spread{{4}, 1, 1}, Spread{{2, 2}, 1, 1}, Spread{{3, 1, 2}, 1, 1},
                                         Spread{{1, 1, 1, 0}, 1, 1}, Spread{{2, 0, 0, 3, 0, 1}, 1, 1},
                                         Spread{{0, 2, 1, 1, 2}, 3, 2}, Spread{{2, 4}, 0, 1}));

}  // namespace
}  // namespace tessera::parallel
