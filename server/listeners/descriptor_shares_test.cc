#include "server/listeners/descriptor_shares.h"

#include <gtest/gtest.h>

#include <climits>

namespace tessera::server {
namespace {

TEST(DescriptorSharesTest, AdminHasSomeThatHttpHasNotAndTheServerSomeThatNeitherHas) {
  for (const int64_t most : {int64_t{64}, int64_t{256}, int64_t{1024}, int64_t{65536}, int64_t{1} << 40, INT64_MAX}) {
    SCOPED_TRACE(most);
    const DescriptorShares shares = SharesOf(most);
    EXPECT_GE(shares.admin_connections, 4);
    EXPECT_GE(shares.admin - shares.http, shares.admin_connections);
    EXPECT_GE(most - 1 - shares.admin, 12);
    EXPECT_GE(shares.http - shares.grpc, 6);
    EXPECT_GT(shares.grpc, 0);
    EXPECT_LE(shares.results, shares.grpc / 2) << "pictures leave connections as many as they take";
  }
}

TEST(DescriptorSharesTest, OfManyNearlyAllAreForCalls) {
  EXPECT_GE(SharesOf(65536).http, 65000);
  EXPECT_GE(SharesOf(1024).http, 700);
}

}  // namespace
}  // namespace tessera::server
