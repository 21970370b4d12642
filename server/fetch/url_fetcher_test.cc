#include "server/fetch/url_fetcher.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/time/steady_time.h"
#include "server/api/field_checks.h"
#include "server/api/service_error.h"
#include "tests/support/scripted_web_server.h"
#include "tests/support/test_folder.h"
#include "tests/tls/self_signed.h"
#include "tests/tls/test_authority.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Request = ScriptedWebServer::Request;
using Peer = ScriptedWebServer::Peer;

// The answers of a resolver, by host: each lookup gets the next one, the last one stays.
class ScriptedNames {
 public:
  using Answers = std::map<std::string, std::vector<std::string>>;

  explicit ScriptedNames(Answers answers) : answers_(std::move(answers)) {}

  HostResolver Resolver() {
    return [this](const std::string& host, absl::Duration) -> absl::StatusOr<std::vector<IpAddress>> {
      lookups_.push_back(host);
      const auto found = answers_.find(host);
      if (found == answers_.end()) return absl::NotFoundError("the name has no address");
      std::vector<IpAddress> addresses;
      for (const absl::string_view text : absl::StrSplit(found->second.front(), ' ')) {
        addresses.push_back(*ParseIpAddress(text));
      }
      if (found->second.size() > 1) found->second.erase(found->second.begin());
      return addresses;
    };
  }

  const std::vector<std::string>& lookups() const { return lookups_; }

 private:
  Answers answers_;
  std::vector<std::string> lookups_;
};

// A fetcher that may reach a server on this machine as pictures.example, cdn.example and private.example, whose address
// is private.
class UrlFetcherTest : public ::testing::Test {
 protected:
  UrlFetcher::Options Options() {
    return {.hosts = {"pictures.example", "*.cdn.example", "private.example", "localhost"},
            .timeout = absl::Minutes(1),
            .resolver = names_.Resolver(),
            .allow_loopback_for_tests = true};
  }

  static std::string Url(const ScriptedWebServer& server, const std::string& target = "/a.png") {
    return absl::StrCat("http://pictures.example:", server.port(), target);
  }

  absl::StatusOr<std::string> Fetch(const std::string& url) { return UrlFetcher(Options()).Fetch(url); }

  // Expects an error about the URL, and returns its message.
  static std::string Refusal(const absl::StatusOr<std::string>& fetched) {
    EXPECT_EQ(fetched.status().code(), absl::StatusCode::kInvalidArgument) << fetched.status();
    EXPECT_EQ(ErrorField(fetched.status()), "image_url");
    EXPECT_EQ(ErrorCodeForCallers(fetched.status()), "invalid_image_url");
    return std::string(fetched.status().message());
  }

  ScriptedNames names_{ScriptedNames::Answers{{"pictures.example", {"127.0.0.1"}},
                                              {"a.cdn.example", {"127.0.0.1"}},
                                              {"localhost", {"127.0.0.1"}},
                                              {"private.example", {"10.0.0.1"}}}};
};

std::string RedirectTo(const std::string& location, int status = 302) {
  return absl::StrCat("HTTP/1.1 ", status, " Found\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\nLocation: ", location,
                      "\r\n\r\n");
}

TEST_F(UrlFetcherTest, ReadsAPictureFromTheAddressThatWasCheckedWithoutCredentials) {
  ScriptedWebServer server(Sending(OkAnswer(std::string("\x89PNG\0\n", 6))));
  const absl::StatusOr<std::string> fetched = Fetch(Url(server, "/a/../b.png?c=%20#d"));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(*fetched, std::string("\x89PNG\0\n", 6));
  EXPECT_THAT(names_.lookups(), ElementsAre("pictures.example"));
  ASSERT_EQ(server.Requests().size(), 1u);
  const std::string head = server.Requests()[0].head;
  EXPECT_THAT(head, StartsWith("GET /a/../b.png?c=%20 HTTP/1.1\r\n"));
  EXPECT_THAT(head, HasSubstr(absl::StrCat("Host: pictures.example:", server.port())));
  EXPECT_THAT(head, HasSubstr("Accept-Encoding: identity"));
  EXPECT_THAT(head, Not(HasSubstr("Authorization")));
}

TEST_F(UrlFetcherTest, WithoutHostsFetchesNothing) {
  ScriptedWebServer server(Sending(OkAnswer("a")));
  UrlFetcher::Options options = Options();
  options.hosts.clear();
  EXPECT_THAT(Refusal(UrlFetcher(options).Fetch(Url(server))), HasSubstr("this server fetches none; send a data URL"));
  EXPECT_EQ(server.connections(), 0);
}

TEST_F(UrlFetcherTest, LooksUpNoNameOfAUrlThatIsNotAllowed) {
  UrlFetcher::Options options = Options();
  options.allow_loopback_for_tests = false;
  UrlFetcher fetcher(options);
  for (const char* url :
       {"http://other.example/", "http://cdn.example/", "http://pictures.example.evil.example/", "http://127.0.0.1/",
        "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://0x7f.1/", "http://2130706433/", "http://0177.0.0.1/",
        "http://user@pictures.example/", "http://:secret@pictures.example/", "http://other.example@pictures.example/",
        "http://pictures.example:8080/", "https://pictures.example:22/", "ftp://pictures.example/",
        "file:///etc/passwd", "http://pictures.example\\@other.example/",
        "http://p\xc3\xad"
        "ctures.example/",
        "x"}) {
    Refusal(fetcher.Fetch(url));
  }
  EXPECT_THAT(names_.lookups(), IsEmpty());
}

TEST_F(UrlFetcherTest, ConnectsToNoAddressThatIsNotPublic) {
  ScriptedWebServer server(Sending(OkAnswer("secret")));
  for (const char* address :
       {"127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::127.0.0.1",
        "64:ff9b::127.0.0.1", "64:ff9b:1::127.0.0.1", "2002:7f00:1::", "fe80::1", "fd00::1", "8.8.8.8 127.0.0.1"}) {
    ScriptedNames names(ScriptedNames::Answers{{"pictures.example", {address}}});
    UrlFetcher::Options options = Options();
    options.allow_loopback_for_tests = false;
    options.resolver = names.Resolver();
    const std::string message = Refusal(UrlFetcher(options).Fetch("http://pictures.example/"));
    EXPECT_EQ(message, "image_url has the host 'pictures.example', which could not be reached") << address;
    EXPECT_EQ(names.lookups().size(), 1u);
  }
  ScriptedNames names(ScriptedNames::Answers{});
  UrlFetcher::Options options = Options();
  options.resolver = names.Resolver();
  EXPECT_EQ(Refusal(UrlFetcher(options).Fetch("http://pictures.example/")),
            "image_url has the host 'pictures.example', which could not be reached");
  EXPECT_EQ(server.connections(), 0);
}

TEST_F(UrlFetcherTest, ANameWithAPrivateAddressAmongItsAddressesIsRefused) {
  ScriptedWebServer server(Sending(OkAnswer("a")));
  ScriptedNames names(ScriptedNames::Answers{{"pictures.example", {"127.0.0.1 10.0.0.1"}}});
  UrlFetcher::Options options = Options();
  options.resolver = names.Resolver();
  Refusal(UrlFetcher(options).Fetch(Url(server)));
  EXPECT_EQ(server.connections(), 0);
}

// A name that is rebound between its check and the connection, or before a redirect to itself.
TEST_F(UrlFetcherTest, ANameIsLookedUpOnceForEachRequestAndCheckedEachTime) {
  ScriptedWebServer server([](const Request& request, Peer& peer) {
    const bool is_second = absl::StrContains(request.head, "GET /second ");
    peer.Send(is_second ? OkAnswer("secret") : RedirectTo("/second"));
  });
  ScriptedNames names(ScriptedNames::Answers{{"pictures.example", {"127.0.0.1", "10.0.0.1"}}});
  UrlFetcher::Options options = Options();
  options.resolver = names.Resolver();
  EXPECT_THAT(Refusal(UrlFetcher(options).Fetch(Url(server))), HasSubstr("could not be reached"));
  EXPECT_EQ(names.lookups().size(), 2u);
  EXPECT_EQ(server.Requests().size(), 1u);
}

TEST_F(UrlFetcherTest, UsesNoProxyOfTheEnvironment) {
  ScriptedWebServer proxy(Sending(OkAnswer("of the proxy"))), server(Sending(OkAnswer("of the server")));
  const std::string url = absl::StrCat("http://127.0.0.1:", proxy.port());
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) setenv(name, url.c_str(), 1);
  const absl::StatusOr<std::string> fetched = Fetch(Url(server));
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) unsetenv(name);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(*fetched, "of the server");
  EXPECT_EQ(proxy.connections(), 0);
}

TEST_F(UrlFetcherTest, FollowsRedirectsToListedHostsWithoutCookies) {
  uint16_t port = 0;
  ScriptedWebServer server([&port](const Request& request, Peer& peer) {
    if (absl::StrContains(request.head, "GET /a.png ")) {
      peer.Send(RedirectTo(absl::StrCat("http://a.cdn.example:", port, "/b.png"), 307));
    } else if (absl::StrContains(request.head, "GET /b.png ")) {
      peer.Send(RedirectTo("c.png", 301));
    } else {
      peer.Send(OkAnswer("picture"));
    }
  });
  port = server.port();
  const absl::StatusOr<std::string> fetched = Fetch(Url(server));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(*fetched, "picture");
  EXPECT_THAT(names_.lookups(), ElementsAre("pictures.example", "a.cdn.example", "a.cdn.example"));
  for (const Request& request : server.Requests()) EXPECT_THAT(request.head, Not(HasSubstr("Cookie")));
}

TEST_F(UrlFetcherTest, FollowsNoRedirectToAnotherPlace) {
  ScriptedWebServer secret(Sending(OkAnswer("secret")));
  for (const std::string& location :
       {absl::StrCat("http://other.example:", secret.port(), "/"),
        absl::StrCat("http://127.0.0.1:", secret.port(), "/"), absl::StrCat("//other.example:", secret.port(), "/"),
        absl::StrCat("http://0x7f.1:", secret.port(), "/"),
        absl::StrCat("http://u:p@pictures.example:", secret.port(), "/"),
        absl::StrCat("http://private.example:", secret.port(), "/"), std::string("file:///etc/passwd"), std::string(),
        std::string("/") + std::string(9000, 'a')}) {
    ScriptedWebServer server(Sending(RedirectTo(location)));
    Refusal(Fetch(Url(server)));
    EXPECT_EQ(server.Requests().size(), 1u) << location;
  }
  EXPECT_EQ(secret.connections(), 0);
}

TEST_F(UrlFetcherTest, FollowsFiveRedirectsAndNoSixth) {
  std::atomic<int> left = 5;
  ScriptedWebServer server(
      [&left](const Request&, Peer& peer) { peer.Send(left-- > 0 ? RedirectTo("/next") : OkAnswer("picture")); });
  const absl::StatusOr<std::string> fetched = Fetch(Url(server));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  left = 6;
  EXPECT_THAT(Refusal(Fetch(Url(server))), HasSubstr("more than 5 times"));
}

TEST_F(UrlFetcherTest, AnAnswerBeyondTheBoundEndsTheConnection) {
  UrlFetcher::Options options = Options();
  options.most_bytes = 100000;
  UrlFetcher fetcher(options);
  std::atomic<bool> was_closed = false;
  ScriptedWebServer endless([&was_closed](const Request&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (peer.Send(absl::StrCat("1000\r\n", std::string(4096, 'a'), "\r\n"))) {
    }
    was_closed = true;
  });
  EXPECT_THAT(Refusal(fetcher.Fetch(Url(endless))), HasSubstr("too large; valid are at most 100000 bytes"));
  ScriptedWebServer declared([](const Request&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n");
    peer.WaitUntilClosed();
  });
  EXPECT_THAT(Refusal(fetcher.Fetch(Url(declared))), HasSubstr("too large"));
  ScriptedWebServer exact(Sending(OkAnswer(std::string(100000, 'a'))));
  EXPECT_TRUE(fetcher.Fetch(Url(exact)).ok());
}

TEST_F(UrlFetcherTest, AHeaderBeyondTheBoundEndsTheConnection) {
  for (const bool is_one_line : {true, false}) {
    ScriptedWebServer server([is_one_line](const Request&, Peer& peer) {
      peer.Send("HTTP/1.1 200 OK\r\nX-Long: ");
      while (peer.Send(is_one_line ? std::string(1024, 'a') : "a\r\nX-Next: ")) {
      }
    });
    EXPECT_THAT(Refusal(Fetch(Url(server))), StartsWith("image_url ")) << is_one_line;
  }
  ScriptedWebServer interim([](const Request&, Peer& peer) {
    while (peer.Send("HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n")) {
    }
  });
  EXPECT_THAT(Refusal(Fetch(Url(interim))), HasSubstr("too large"));
}

TEST_F(UrlFetcherTest, AnAnswerThatIsNotCompleteInTimeIsGivenUp) {
  UrlFetcher::Options options = Options();
  options.timeout = absl::Milliseconds(300);
  for (const char* begin : {"", "HTTP/1.1 200 OK\r\nX-Slow: ", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na"}) {
    ScriptedWebServer server([begin](const Request&, Peer& peer) {
      peer.Send(begin);
      peer.WaitUntilClosed();
    });
    EXPECT_THAT(Refusal(UrlFetcher(options).Fetch(Url(server))), HasSubstr("not complete in time")) << begin;
  }
}

TEST_F(UrlFetcherTest, AnAnswerThatIsNoWholeAnswerIsRefused) {
  for (const char* answer :
       {"", "x", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"}) {
    ScriptedWebServer server(Sending(answer));
    Refusal(Fetch(Url(server)));
    EXPECT_EQ(server.Requests().size(), 1u) << answer;
  }
}

TEST_F(UrlFetcherTest, TrustsOnlyCertificatesOfTheAuthoritiesAndForThatHost) {
  TestFolder folder;
  const TestAuthority authority("authority");
  authority.Write(folder / "authority.pem");
  const TlsCertificates::Files issued = {.certificate_chain = folder / "a.pem", .private_key = folder / "a.key"};
  const TlsCertificates::Files own = {.certificate_chain = folder / "b.pem", .private_key = folder / "b.key"};
  const TlsCertificates::Files expired = {.certificate_chain = folder / "c.pem", .private_key = folder / "c.key"};
  authority.Issue("localhost", issued);
  authority.Issue("localhost", expired, -60);
  WriteSelfSigned("localhost", own);
  UrlFetcher::Options options = Options();
  options.authority_file_for_tests = folder / "authority.pem";
  UrlFetcher fetcher(options);
  const auto fetch = [&](const TlsCertificates::Files& files, const std::string& host) {
    ScriptedWebServer server(Sending(OkAnswer("picture")), files.certificate_chain, files.private_key);
    const auto fetched = fetcher.Fetch(absl::StrCat("https://", host, ":", server.port(), "/"));
    EXPECT_EQ(server.Requests().size(), fetched.ok() ? 1u : 0u) << "the request is sent after the check";
    return fetched;
  };
  const absl::StatusOr<std::string> good = fetch(issued, "localhost");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(*good, "picture");
  EXPECT_THAT(Refusal(fetch(issued, "pictures.example")), HasSubstr("its certificate is not valid"));
  EXPECT_THAT(Refusal(fetch(own, "localhost")), HasSubstr("its certificate is not valid"));
  EXPECT_THAT(Refusal(fetch(expired, "localhost")), HasSubstr("its certificate is not valid"));
}

TEST_F(UrlFetcherTest, NeverFollowsARedirectFromHttpsToHttp) {
  TestFolder folder;
  const TestAuthority authority("authority");
  authority.Write(folder / "authority.pem");
  authority.Issue("localhost", {.certificate_chain = folder / "a.pem", .private_key = folder / "a.key"});
  ScriptedWebServer plain(Sending(OkAnswer("a")));
  ScriptedWebServer secure(Sending(RedirectTo(Url(plain))), folder / "a.pem", folder / "a.key");
  UrlFetcher::Options options = Options();
  options.authority_file_for_tests = folder / "authority.pem";
  EXPECT_THAT(Refusal(UrlFetcher(options).Fetch(absl::StrCat("https://localhost:", secure.port(), "/"))),
              HasSubstr("from https to http"));
  EXPECT_EQ(plain.connections(), 0);
}

TEST_F(UrlFetcherTest, WithoutAFreeSlotIsNotAvailable) {
  ScriptedWebServer server(Sending(OkAnswer("a")));
  UrlFetcher::Options options = Options();
  options.concurrency = 0;
  options.timeout = absl::Milliseconds(1);
  const absl::StatusOr<std::string> fetched = UrlFetcher(options).Fetch(Url(server));
  EXPECT_EQ(fetched.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfter(fetched.status()).has_value());
  EXPECT_EQ(server.connections(), 0);
}

TEST(HttpExchangeTest, ConnectsToNoOtherAddressThanThoseGiven) {
  ScriptedWebServer server(Sending(OkAnswer("a")));
  HttpExchange exchange = {.url = ParseHttpUrl(absl::StrCat("http://127.0.0.1:", server.port(), "/")).value(),
                           .addresses = {*ParseIpAddress("127.0.0.2")},
                           .deadline = base::SteadyNow() + absl::Minutes(1),
                           .most_body_bytes = 10};
  EXPECT_EQ(Exchange(exchange).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.connections(), 0);
  exchange.addresses.push_back(*ParseIpAddress("127.0.0.1"));
  EXPECT_TRUE(Exchange(exchange).ok());
}

TEST(SystemResolverTest, FindsTheAddressesOfThisMachine) {
  const HostResolver resolver = SystemResolver();
  const auto found = resolver("localhost", base::SteadyNow() + absl::Minutes(1));
  ASSERT_TRUE(found.ok()) << found.status();
  for (const IpAddress& address : *found) EXPECT_TRUE(IsLoopback(address)) << IpAddressText(address);
}

}  // namespace
}  // namespace tessera::server
