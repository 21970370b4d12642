#include "client/cli/generation_options.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

using server::AdapterRequest;

TEST(GenerationOptions, AnAdapterIsAFileOrNameAndPerhapsItsScale) {
  EXPECT_EQ(ParseAdapter("style"), (AdapterRequest{.name = "style", .scale = 1}));
  EXPECT_EQ(ParseAdapter("style:0.75"), (AdapterRequest{.name = "style", .scale = 0.75}));
  EXPECT_EQ(ParseAdapter("dir/style.safetensors:-2"), (AdapterRequest{.name = "dir/style.safetensors", .scale = -2}));
  EXPECT_EQ(ParseAdapter("a:b"), (AdapterRequest{.name = "a:b"}));
  EXPECT_EQ(ParseAdapter("a:2:0"), (AdapterRequest{.name = "a:2", .scale = 0}));
  EXPECT_EQ(ParseAdapter(":1"), (AdapterRequest{.name = ":1"}));
  EXPECT_EQ(ParseAdapter("a:"), (AdapterRequest{.name = "a:"}));
}

TEST(GenerationOptions, AdaptersKeepTheirOrder) {
  GenerationOptions options;
  options.lists["loras"] = {"b:2", "a"};
  const absl::StatusOr<server::ImageRequest> request = RequestOf(options);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->loras, (std::vector<AdapterRequest>{{.name = "b", .scale = 2}, {.name = "a"}}));
}

}  // namespace
}  // namespace tessera::client
