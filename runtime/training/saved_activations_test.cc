// What waits for its gradient between the two halves of a pass: the memory that sharing out tokens is for.
#include "tests/support/saved_activations.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace tessera::runtime {
namespace {

class SavedActivationsTest : public testing::TestWithParam<const char*> {
 protected:
  SavedActivations saved_{GetParam()};
};

// In fp64 and in the operators of the reference, which keep scores and more copies than a fused kernel, but of the same
// tokens. A hundredth for what does not depend on tokens.
TEST_P(SavedActivationsTest, TensorRanksThatShareOutTokensKeepTheirShareOfABlock) {
  for (const bool frozen : {false, true}) {
    const double serial = saved_.Bytes({.frozen = frozen});
    ASSERT_GT(serial, 1e6);
    for (const int ranks : {2, 4}) {
      const double all_reduce = saved_.Bytes({.ranks = ranks, .frozen = frozen}),
                   shared = saved_.Bytes({.ranks = ranks, .shares_tokens = true, .frozen = frozen});
      std::printf("%s, tensor %d%s: %.3f of one rank's bytes, %.3f without shared tokens\n", GetParam(), ranks,
                  frozen ? ", frozen" : "", shared / serial, all_reduce / serial);
      EXPECT_LE(shared, serial * (1.0 / ranks + 0.01)) << ranks << (frozen ? " frozen" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SavedActivationsTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
