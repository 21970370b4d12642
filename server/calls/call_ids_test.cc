#include "server/calls/call_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::server {
namespace {

using ::testing::StartsWith;

constexpr char kTraceParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(RequestId, OfTheCallerIsKeptIfItIsShortAndVisible) {
  EXPECT_EQ(RequestIdFrom("a~!"), "a~!");
  EXPECT_EQ(RequestIdFrom(std::string(128, 'x')), std::string(128, 'x'));
  for (const std::string& sent : {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\n")}) {
    EXPECT_THAT(RequestIdFrom(sent), StartsWith("req_"));
  }
}

TEST(TraceParent, IsKeptIfItIsWellFormed) { EXPECT_EQ(TraceParentFrom(kTraceParent), kTraceParent); }

TEST(TraceParent, OfAnotherFormIsDropped) {
  for (const std::string sent : {"", "00", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                 "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                 "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
                                 "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                 "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                 "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
                                 "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-00"}) {
    EXPECT_EQ(TraceParentFrom(sent), "") << sent;
  }
}

TEST(TraceParent, ReportsTheIdOfItsTrace) {
  EXPECT_EQ(TraceIdOf(kTraceParent), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(TraceIdOf(""), "");
}

}  // namespace
}  // namespace tessera::server
