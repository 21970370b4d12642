#include "server/fetch/http_url.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

std::string Parsed(absl::string_view text) {
  const absl::StatusOr<HttpUrl> url = ParseHttpUrl(text);
  return url.ok() ? HttpUrlText(*url) : "refused";
}

TEST(HttpUrlTest, IsTakenApartInOneForm) {
  EXPECT_EQ(Parsed("https://images.example.org/a/b.png?c=d&e#f"), "https://images.example.org:443/a/b.png?c=d&e");
  EXPECT_EQ(Parsed("HTTP://Images.EXAMPLE.org"), "http://images.example.org:80/");
  EXPECT_EQ(Parsed("http://a.example:8080?q"), "http://a.example:8080/?q");
  EXPECT_EQ(Parsed("http://a.example/@b:c"), "http://a.example:80/@b:c");
  EXPECT_EQ(Parsed("http://a.example#@b.example/"), "http://a.example:80/");
  EXPECT_EQ(Parsed("https://xn--bcher-kva.example/%C3%BC"), "https://xn--bcher-kva.example:443/%C3%BC");
  EXPECT_EQ(Parsed("http://127.0.0.1/"), "http://127.0.0.1:80/");
  EXPECT_EQ(Parsed("http://[::1]:90/"), "http://[::1]:90/");
  EXPECT_TRUE(ParseHttpUrl("http://[::1]:90/")->address->is_v6);
  EXPECT_FALSE(ParseHttpUrl("http://a.example")->address.has_value());
}

TEST(HttpUrlTest, RefusesWhatReadersUnderstandDifferently) {
  for (const char* text : {"",
                           "images.example",
                           "ftp://a.example/",
                           "file:///etc/passwd",
                           "gopher://a.example/",
                           "http:a.example",
                           "http:///a",
                           "http://",
                           "http://user@a.example/",
                           "http://user:password@a.example/",
                           "http://@a.example/",
                           "http://b.example@a.example/",
                           "http://a.example\\@b.example/",
                           "http://a.example\\.b.example/",
                           "http://a.example /",
                           " http://a.example/",
                           "http://a.example/a b",
                           "http://a.example/\ta",
                           "http://a.example/\r\nb",
                           "http://a.example/\xc3\xbc",
                           "http://b\xc3\xbc"
                           "cher.example/",
                           "http://\xef\xbd\x81.example/",
                           "http://%61.example/",
                           "http://a..example/",
                           "http://a.example./",
                           "http://.example/",
                           "http://a_*.example/",
                           "http://a.example:/",
                           "http://a.example:0/",
                           "http://a.example:65536/",
                           "http://a.example:+80/",
                           "http://a.example:080000/",
                           "http://a.example:80:80/",
                           "http://[::1/",
                           "http://::1/",
                           "http://[::1]a/",
                           "http://[127.0.0.1]/",
                           "http://[::1%25lo]/",
                           "http://[v1.a]/"}) {
    EXPECT_EQ(Parsed(text), "refused") << text;
  }
  EXPECT_EQ(Parsed(std::string("http://a.example/\0", 18)), "refused");
  EXPECT_EQ(Parsed("http://" + std::string(64, 'a') + ".example/"), "refused");
  std::string long_name;
  for (int i = 0; i < 64; ++i) long_name += "aaa.";
  EXPECT_EQ(Parsed("http://" + long_name + "example/"), "refused");
  EXPECT_EQ(Parsed("http://a.example/" + std::string(kMaxUrlBytes, 'a')), "refused");
}

TEST(HttpUrlTest, RefusesNumbersThatSomeReadersTakeForAnAddress) {
  for (const char* host : {"2130706433", "0x7f000001", "0x7f.1", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.1",
                           "127.0.0.01", "127.0.0.0x1", "1.2.3.4.5", "256.0.0.1", "a.example.0x", "a.1", "0"}) {
    EXPECT_EQ(Parsed(std::string("http://") + host + "/"), "refused") << host;
  }
}

TEST(HttpUrlTest, OfARedirectIsResolvedFromTheUrlBefore) {
  const HttpUrl from = ParseHttpUrl("https://a.example:444/b/c?d").value();
  const auto resolved = [&](absl::string_view location) {
    const absl::StatusOr<HttpUrl> url = ResolveLocation(from, location);
    return url.ok() ? HttpUrlText(*url) : "refused";
  };
  EXPECT_EQ(resolved("http://b.example/x#y"), "http://b.example:80/x");
  EXPECT_EQ(resolved("//b.example/x"), "https://b.example:443/x");
  EXPECT_EQ(resolved("/x?y"), "https://a.example:444/x?y");
  EXPECT_EQ(resolved("x"), "https://a.example:444/b/x");
  EXPECT_EQ(resolved("../../x/./y/.."), "https://a.example:444/x/");
  EXPECT_EQ(resolved("?e:f"), "https://a.example:444/b/c?e:f");
  EXPECT_EQ(resolved("x?../y"), "https://a.example:444/b/x?../y");
  EXPECT_EQ(resolved(""), "https://a.example:444/b/c?d");
  EXPECT_EQ(resolved("/..//c.example/"), "https://a.example:444//c.example/");
  for (const char* location : {"file:///etc/passwd", "javascript:x", "//user@b.example/", "/a b", "\\\\b.example",
                               "http:/b.example", "https://0x7f.1/"}) {
    EXPECT_EQ(resolved(location), "refused") << location;
  }
}

TEST(HostPatternTest, IsAHostNameOrAllNamesThatEndSo) {
  for (const char* pattern :
       {"images.example.org", "Images.Example.org", "localhost", "*.example.org", "xn--bcher-kva.example"}) {
    EXPECT_TRUE(CheckHostPattern(pattern).ok()) << pattern;
  }
  for (const char* pattern : {"", "*", "*.org", "*.", "a.*.org", "*a.example.org", "127.0.0.1", "[::1]", "0x7f.1",
                              "a.example:80", "https://a.example", "a.example/",
                              "b\xc3\xbc"
                              "cher.example",
                              "a.example.", "*.*.example.org"}) {
    EXPECT_FALSE(CheckHostPattern(pattern).ok()) << pattern;
  }
}

TEST(HostPatternTest, MatchesNoOtherHost) {
  const std::vector<std::string> patterns = {"images.example.org", "*.CDN.example"};
  for (const char* host : {"images.example.org", "a.cdn.example", "a.b.cdn.example"}) {
    EXPECT_TRUE(MatchesHost(host, patterns)) << host;
  }
  for (const char* host : {"cdn.example", ".cdn.example", "acdn.example", "a.cdn.example.net", "x.images.example.org",
                           "images.example.org.evil.example", "example.org", ""}) {
    EXPECT_FALSE(MatchesHost(host, patterns)) << host;
  }
  EXPECT_FALSE(MatchesHost("a.example", {}));
}

}  // namespace
}  // namespace tessera::server
