#include "client/cli/pull/web_url.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::client {
namespace {

TEST(WebUrlTest, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(ParseWebUrl("https://Hub.example/a?b")->origin, "https://hub.example:443");
  EXPECT_EQ(ParseWebUrl("https://hub.example:443")->origin, ParseWebUrl("https://hub.example/x")->origin);
  EXPECT_NE(ParseWebUrl("https://hub.example:444")->origin, ParseWebUrl("https://hub.example")->origin);
  EXPECT_NE(ParseWebUrl("http://hub.example")->origin, ParseWebUrl("https://hub.example")->origin);
  EXPECT_NE(ParseWebUrl("https://cdn.hub.example")->origin, ParseWebUrl("https://hub.example")->origin);
  for (const char* text : {"", "hub.example", "ftp://hub.example", "file:///etc/passwd", "https://", "https://a b/"}) {
    EXPECT_FALSE(ParseWebUrl(text).ok()) << text;
  }
}

TEST(WebUrlTest, ARedirectIsResolvedAndMayNotLeaveHttps) {
  const WebUrl from = *ParseWebUrl("https://hub.example/o/m/resolve/main/a");
  EXPECT_EQ(ResolveRedirect(from, "/other/a", false)->text, "https://hub.example/other/a");
  EXPECT_EQ(ResolveRedirect(from, "https://cdn.example/x?s=1", false)->origin, "https://cdn.example:443");
  EXPECT_FALSE(ResolveRedirect(from, "http://cdn.example/x", false).ok());
  EXPECT_TRUE(ResolveRedirect(from, "http://cdn.example/x", true).ok());
  for (const char* location : {"", "file:///etc/passwd", "https://user:secret@cdn.example/x", "gopher://x"}) {
    EXPECT_FALSE(ResolveRedirect(from, location, true).ok()) << location;
  }
}

TEST(WebUrlTest, EscapesNamesAndKeepsSlashes) { EXPECT_EQ(EscapedPath("a b/c?#%ü"), "a%20b/c%3F%23%25%C3%BC"); }

}  // namespace
}  // namespace tessera::client
