#include "server/config/web_url.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

TEST(WebUrlTest, TheOriginIsWhatABrowserSends) {
  const std::pair<const char*, const char*> cases[] = {{"https://studio.example", "https://studio.example"},
                                                       {"HTTPS://Studio.Example", "https://studio.example"},
                                                       {"https://studio.example:443", "https://studio.example"},
                                                       {"http://studio.example:80/a", "http://studio.example"},
                                                       {"https://studio.example:80", "https://studio.example:80"},
                                                       {"http://studio.example:08443", "http://studio.example:8443"},
                                                       {"https://studio.example/a/b", "https://studio.example"},
                                                       {"http://127.0.0.1:3000/", "http://127.0.0.1:3000"},
                                                       {"http://[0:0:0::1]:3000/a", "http://[::1]:3000"}};
  for (const auto& [url, origin] : cases) {
    const std::optional<WebUrl> parsed = ParseWebUrl(url);
    ASSERT_TRUE(parsed.has_value()) << url;
    EXPECT_EQ(parsed->origin, origin) << url;
  }
}

TEST(WebUrlTest, ThePathIsWhatFollowsTheHost) {
  EXPECT_EQ(ParseWebUrl("https://a.example")->path, "");
  EXPECT_EQ(ParseWebUrl("https://a.example/")->path, "/");
  EXPECT_EQ(ParseWebUrl("https://a.example:8443/images/b")->path, "/images/b");
}

TEST(WebUrlTest, WhatNoBrowserSendsIsNoUrl) {
  for (const char* url : {"",
                          "studio.example",
                          "ftp://a.example",
                          "https://",
                          "https:///a",
                          "https://*",
                          "https://*.a.example",
                          "https://me@a.example",
                          "https://a.example?b",
                          "https://a.example/?b",
                          "https://a.example/#b",
                          "https://a.example:",
                          "https://a.example:0",
                          "https://a.example:65536",
                          "https://a.example:x",
                          "https://a.example:-1",
                          "https://a b.example",
                          "https://a.example/ b",
                          "https://b\xc3\xbc.example",
                          "https://[::1",
                          "https://[::1]x",
                          "https://[a]",
                          "https://::1",
                          " https://a.example"}) {
    EXPECT_FALSE(ParseWebUrl(url).has_value()) << url;
  }
}

}  // namespace
}  // namespace tessera::server
