// Peers that break rules, exceed time limits or repeat known attacks: each may only lose its connection.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/api/job.h"
#include "tests/support/api_fixture.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

constexpr char kHost[] = "Host: localhost\r\n";

// Returns the status of the answer to these bytes on a new connection.
int StatusOf(ApiFixture& api, const std::string& bytes) {
  HttpTestClient client(api.port());
  client.Send(bytes);
  return client.ReadResponse().status;
}

std::string Post(const std::string& headers, const std::string& rest) {
  return absl::StrCat("POST /v1/images/generations HTTP/1.1\r\n", kHost, "Content-Type: application/json\r\n", headers,
                      "\r\n", rest);
}

constexpr char kGet[] = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";

// Keeps every request running until AnswerAll.
class HeldReplies final : public HttpHandler {
 public:
  void Handle(HttpRequest, std::shared_ptr<HttpReply> reply) override {
    const std::lock_guard lock(mutex_);
    replies_.push_back(std::move(reply));
    changed_.notify_all();
  }
  bool AnswersAtOnce(const HttpRequest&) const override { return true; }
  HttpResponse Refusal(int status, const std::string&, const std::string&) override {
    return {.status = status, .headers = {}, .body = ""};
  }

  bool WaitFor(size_t requests) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return replies_.size() >= requests; });
  }
  void AnswerAll() {
    const std::lock_guard lock(mutex_);
    for (const auto& reply : replies_) reply->Send({.status = 200, .headers = {}, .body = "{}"});
    replies_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpReply>> replies_;
};

class HostilePeerTest : public ::testing::Test {
 protected:
  // Whatever a peer did, other clients are served.
  void TearDown() override { EXPECT_EQ(api_.Call("GET", "/v1/models").status, 200); }

  ApiFixture api_;
};

struct BadBytes {
  const char* name;
  std::string bytes;
  int status;
};

TEST_F(HostilePeerTest, FramingThatCanBeReadInTwoWaysIsRefused) {
  const std::vector<BadBytes> rows = {
      {"no request", "hello\r\n\r\n", 400},
      {"binary", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/0.9", "GET /v1/models\r\n\r\n", 400},
      {"HTTP/1.2", absl::StrCat("GET /v1/models HTTP/1.2\r\n", kHost, "\r\n"), 505},
      {"HTTP/3.0", absl::StrCat("GET /v1/models HTTP/3.0\r\n", kHost, "\r\n"), 505},
      {"two blanks", absl::StrCat("GET  /v1/models HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"blank in the target", absl::StrCat("GET /v1 /models HTTP/1.1\r\n", kHost, "\r\n"), 505},
      {"absolute target without a host", absl::StrCat("GET http:///v1/models HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"absolute target with a user", absl::StrCat("GET http://a@localhost/livez HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"absolute target of a rebound name",
       absl::StrCat("GET http://evil.example/v1/models HTTP/1.1\r\n", kHost, "\r\n"), 421},
      {"absolute target of another scheme", absl::StrCat("GET ftp://localhost/livez HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"absolute target, no Host", "GET http://localhost/v1/models HTTP/1.1\r\n\r\n", 400},
      {"absolute target, two Hosts",
       "GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"authority target", absl::StrCat("CONNECT localhost:80 HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"asterisk target", absl::StrCat("OPTIONS * HTTP/1.1\r\n", kHost, "\r\n"), 400},
      {"NUL in the target", std::string("GET /v1\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 38), 400},
      {"NUL in a header", std::string("GET /v1 HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n", 45), 400},
      {"header without a colon", absl::StrCat("GET /v1/models HTTP/1.1\r\n", kHost, "abc\r\n\r\n"), 400},
      {"header without a name", absl::StrCat("GET /v1/models HTTP/1.1\r\n", kHost, ": a\r\n\r\n"), 400},
      {"blank before the colon", absl::StrCat("GET /v1/models HTTP/1.1\r\n", kHost, "A : b\r\n\r\n"), 400},
      {"no Host", "GET /v1/models HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"empty Host", "GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"Host of a rebound name", "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421},
      {"Host with a user", "GET /v1/models HTTP/1.1\r\nHost: a@localhost\r\n\r\n", 400},
      {"Host with a path", "GET /v1/models HTTP/1.1\r\nHost: localhost/a\r\n\r\n", 400},
      {"Host with a wrong port", "GET /v1/models HTTP/1.1\r\nHost: localhost:http\r\n\r\n", 400},
      {"negative length", Post("Content-Length: -1\r\n", ""), 400},
      {"signed length", Post("Content-Length: +5\r\n", "{}   "), 400},
      {"hexadecimal length", Post("Content-Length: 0x5\r\n", "{}   "), 400},
      {"two lengths", Post("Content-Length: 2\r\nContent-Length: 3\r\n", "{} "), 400},
      {"equal lengths", Post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}"), 400},
      {"list of lengths", Post("Content-Length: 2, 2\r\n", "{}"), 400},
      {"length beyond 64 bits", Post("Content-Length: 18446744073709551616\r\n", ""), 400},
      {"length beyond the limit", Post("Content-Length: 1048577\r\n", ""), 413},
      {"huge length", Post("Content-Length: 9223372036854775807\r\n", ""), 413},
      {"length and chunks", Post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {"chunks and length", Post("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", "0\r\n\r\n"), 400},
      {"two codings", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {"gzip, chunked", Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"chunked, gzip", Post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 501},
      {"unknown coding", Post("Transfer-Encoding: xchunked\r\n", ""), 501},
      {"chunked twice", Post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {"chunks in HTTP/1.0",
       absl::StrCat("POST /v1/jobs HTTP/1.0\r\n", kHost, "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
      {"negative chunk", Post("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n"), 400},
      {"chunk of ffffffffffffffff", Post("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\n"), 413},
      {"chunk beyond 64 bits", Post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n"), 400},
      {"chunk of 7fffffff", Post("Transfer-Encoding: chunked\r\n", "7fffffff\r\n"), 413},
      {"chunk without a size", Post("Transfer-Encoding: chunked\r\n", "\r\n\r\n"), 400},
      {"chunk that is no number", Post("Transfer-Encoding: chunked\r\n", "xyz\r\n"), 400},
      {"chunk longer than it says", Post("Transfer-Encoding: chunked\r\n", "2\r\n{}xx\r\n0\r\n\r\n"), 400},
      {"unknown expectation", Post("Expect: 200-ok\r\nContent-Length: 2\r\n", "{}"), 417},
      {"header beyond the limit", absl::StrCat("GET / HTTP/1.1\r\n", kHost, "A: ", std::string(20000, 'a'), "\r\n\r\n"),
       431},
      {"target beyond the limit", absl::StrCat("GET /", std::string(20000, 'a'), " HTTP/1.1\r\n", kHost, "\r\n"), 431},
  };
  for (const BadBytes& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(StatusOf(api_, row.bytes), row.status);
  }
}

TEST_F(HostilePeerTest, ManySmallHeadersAreRefusedAtTheLimitOfTheHeader) {
  std::string request = absl::StrCat("GET /v1/models HTTP/1.1\r\n", kHost);
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&request, "a:b\r\n");
  EXPECT_EQ(StatusOf(api_, request), 431);
}

TEST_F(HostilePeerTest, AMillionSixByteChunksEndAtTheLimitOfTheWire) {
  std::string body;
  for (int i = 0; i < 1000000; ++i) body += "1\r\n \r\n";
  EXPECT_EQ(StatusOf(api_, Post("Transfer-Encoding: chunked\r\n", body)), 413);
}

TEST_F(HostilePeerTest, AnEndlessChunkExtensionIsRefused) {
  EXPECT_EQ(StatusOf(api_, Post("Transfer-Encoding: chunked\r\n", "1;" + std::string(100000, 'a'))), 431);
}

TEST_F(HostilePeerTest, EndlessTrailersAreRefused) {
  std::string trailers = "0\r\n";
  for (int i = 0; i < 50000; ++i) trailers += "a: b\r\n";
  EXPECT_THAT(StatusOf(api_, Post("Transfer-Encoding: chunked\r\n", trailers)), ::testing::AnyOf(400, 431));
}

TEST_F(HostilePeerTest, ABodyInHonestChunksIsRead) {
  EXPECT_EQ(StatusOf(api_, Post("Transfer-Encoding: chunked\r\n", "8\r\n{\"prompt\r\n6\r\n\":\"a\"}\r\n0\r\n\r\n")),
            200);
}

TEST_F(HostilePeerTest, ACompressedBodyIsNeverUnpacked) {
  // The first bytes of a gzip stream; the rest does not matter.
  const std::string bomb("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff", 10);
  EXPECT_EQ(StatusOf(api_, Post(absl::StrCat("Content-Encoding: gzip\r\nContent-Length: ", bomb.size(), "\r\n"), bomb)),
            415);
}

TEST_F(HostilePeerTest, ClientsThatWaitForContinueReceiveIt) {
  HttpTestClient client(api_.port());
  client.Send(Post("Expect: 100-continue\r\nContent-Length: 14\r\n", ""));
  EXPECT_EQ(client.ReadResponse().status, 100);
  client.Send(R"({"prompt":"a"})");
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST_F(HostilePeerTest, RequestsSentAheadAreAnsweredInOrder) {
  HttpTestClient client(api_.port());
  const std::string get = absl::StrCat("GET /livez HTTP/1.1\r\n", kHost, "x-request-id: ");
  std::string requests;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&requests, get, i, "\r\n\r\n");
  client.Send(requests);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.ReadResponse().Header("x-request-id"), absl::StrCat(i));
}

TEST_F(HostilePeerTest, OldClientsGetTheirAnswerAndTheEndOfTheConnection) {
  HttpTestClient client(api_.port());
  client.Send(absl::StrCat("GET /livez HTTP/1.0\r\n", kHost, "\r\n"));
  EXPECT_EQ(client.ReadResponse().status, 200);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST_F(HostilePeerTest, ProbesOfHttp10NeedNoHost) {
  for (const char* path : {"/readyz", "/livez", "/v1/models"}) {
    HttpTestClient client(api_.port());
    client.Send(absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n"));
    EXPECT_EQ(client.ReadResponse().status, 200) << path;
    EXPECT_TRUE(client.WaitForEnd());
  }
  HttpTestClient client(api_.port());
  client.Send("GET /v1/models HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 403);
  EXPECT_EQ(StatusOf(api_, "GET /readyz HTTP/1.0\r\nHost: evil.example\r\n\r\n"), 200) << "as every probe";
  EXPECT_EQ(StatusOf(api_, "GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n"), 421);
}

TEST_F(HostilePeerTest, LinksForAClientWithoutAHostArePaths) {
  const std::string body = R"({"prompt":"a","response_format":"url"})";
  HttpTestClient client(api_.port());
  client.Send(absl::StrCat("POST /v1/images/generations HTTP/1.0\r\nContent-Type: application/json\r\n",
                           "Content-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_THAT(client.ReadResponse().body, HasSubstr("\"url\":\"/v1/images/"));
}

TEST_F(HostilePeerTest, ATargetInAbsoluteFormIsReadAsItsPathAtItsHost) {
  for (const char* target : {"http://localhost/livez", "HTTP://localhost:8080/livez", "https://127.0.0.1/livez"}) {
    EXPECT_EQ(StatusOf(api_, absl::StrCat("GET ", target, " HTTP/1.1\r\n", kHost, "\r\n")), 200) << target;
  }
  EXPECT_EQ(StatusOf(api_, "GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 200)
      << "the header does not count";
  EXPECT_EQ(StatusOf(api_, "GET http://localhost/livez HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(StatusOf(api_, absl::StrCat("GET http://localhost HTTP/1.1\r\n", kHost, "\r\n")), 404)
      << "there is no page";
  EXPECT_EQ(StatusOf(api_, absl::StrCat("GET http://localhost/v1/jobs?limit=0 HTTP/1.1\r\n", kHost, "\r\n")), 400);
}

TEST(HalfClosedTest, AClientThatSendsNoMoreGetsItsAnswer) {
  for (const char* version : {"1.0", "1.1"}) {
    for (const char* body : {R"({"prompt":"a"})", R"({"prompt":"a","stream":true})"}) {
      ApiFixture api({.service = {.paused = true}});
      HttpTestClient client(api.port());
      client.Send(absl::StrCat("POST /v1/images/generations HTTP/", version, "\r\n", kHost,
                               "Content-Type: application/json\r\nContent-Length: ", std::string(body).size(),
                               "\r\n\r\n", body));
      client.ShutDownSending();
      // The answer begins when the server has noticed the end of input.
      const std::string begin = client.ReadUntil("HTTP/1.1 ");
      api.service().AllowSteps(4);
      const std::string rest = client.ReadUntil("no such text");
      EXPECT_THAT(begin + rest, ::testing::StartsWith("HTTP/1.1 200 OK\r\n")) << version << body;
      EXPECT_THAT(rest, HasSubstr("\"b64_json\":")) << version << body;
    }
  }
}

TEST(HalfClosedTest, RequestsThatWereSentAheadAreAnsweredToo) {
  ApiFixture api;
  HttpTestClient client(api.port());
  client.Send(
      absl::StrCat("GET /v1/models HTTP/1.1\r\n", kHost, "\r\n", kGet, "GET /v1/models HTTP/1.1\r\n", kHost, "\r\n"));
  client.ShutDownSending();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ReadResponse().status, 200) << i;
  EXPECT_TRUE(client.WaitForEnd());
}

TEST(HalfClosedTest, TheJobOfAClientThatHasGoneIsCancelled) {
  for (const char* version : {"1.0", "1.1"}) {
    ApiFixture api({.service = {.paused = true}});
    HttpTestClient client(api.port());
    const std::string body = R"({"prompt":"a"})";
    client.Send(absl::StrCat("POST /v1/images/generations HTTP/", version, "\r\n", kHost,
                             "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    ASSERT_TRUE(api.service().WaitForJobs(JobState::kRunning, 1));
    client.Close();
    EXPECT_TRUE(api.service().WaitForJobs(JobState::kCancelled, 1)) << version;
  }
}

TEST_F(HostilePeerTest, AHeadRequestGetsTheHeaderAlone) {
  HttpTestClient client(api_.port());
  const TestResponse head = client.Call("HEAD", "/v1/models");
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.Header("content-length"), "0");
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
}

TEST_F(HostilePeerTest, ARequestIdIsEchoedIfItIsValidAndReplacedIfNot) {
  const auto id = [&](const std::string& sent) {
    return api_.Call("GET", "/livez", "", {{"x-request-id", sent}}).Header("x-request-id");
  };
  EXPECT_EQ(id("abc-123"), "abc-123");
  EXPECT_THAT(id(std::string(129, 'a')), ::testing::StartsWith("req_"));
  EXPECT_THAT(id("a b"), ::testing::StartsWith("req_"));
  EXPECT_THAT(id("caf\xC3\xA9"), ::testing::StartsWith("req_"));
  EXPECT_EQ(id("\"><script>"), "\"><script>");
}

TEST_F(HostilePeerTest, ARangeOfManyPartsGetsTheWholeOnce) {
  std::string range = "bytes=0-";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&range, ",5-", i);
  const TestResponse response = api_.Call("GET", "/v1/models", "", {{"Range", range}});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, api_.Call("GET", "/v1/models").body);
}

TEST(HostilePeerTimeTest, AHeaderThatTricklesInTakesNoLongerThanItsTime) {
  ApiFixture api({.server = {.limits = {.header_time = absl::Milliseconds(200)}}});
  HttpTestClient client(api.port());
  client.Send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n");
  std::atomic<bool> ended = false;
  std::thread trickle([&] {
    while (!ended && client.Send("a: b\r\n")) std::this_thread::yield();
  });
  HttpTestClient silent(api.port());
  EXPECT_TRUE(silent.WaitForEnd());
  EXPECT_TRUE(client.WaitForEnd());
  ended = true;
  trickle.join();
}

TEST(HostilePeerTimeTest, ABodyThatDoesNotComeIsGivenUp) {
  ApiFixture api({.server = {.limits = {.body_time = absl::Milliseconds(100)}}});
  HttpTestClient client(api.port());
  client.Send(Post("Content-Length: 1000\r\n", "{"));
  EXPECT_EQ(client.ReadResponse().status, 408);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST(HostilePeerTimeTest, AnIdleConnectionIsClosed) {
  ApiFixture api({.server = {.limits = {.idle_time = absl::Milliseconds(100)}}});
  HttpTestClient client(api.port());
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST(HostilePeerTimeTest, AClientThatTakesNothingIsGivenUp) {
  ApiFixture api({.server = {.limits = {.write_time = absl::Milliseconds(100)}}});
  HttpTestClient client(api.port());
  ASSERT_EQ(client.Call("GET", "/livez").status, 200);
  ASSERT_EQ(api.server().connections(), 1u);
  // Far more answers than the kernel buffers.
  const std::string request = absl::StrCat("GET /openapi.json HTTP/1.1\r\n", kHost, "\r\n");
  for (int i = 0; i < 100000 && client.Send(request); ++i) {
  }
  WaitUntil("no connection", [&] { return api.server().connections() == 0; });
  EXPECT_EQ(api.server().connections(), 0u);
}

TEST(HostilePeerLimitTest, ConnectionsBeyondTheLimitAreClosedWhereAllHaveARequestUnderWay) {
  HeldReplies held;
  const auto server = HttpServer::Start({.limits = {.connections = 2, .header_time = absl::Minutes(5)}}, held);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpTestClient first((*server)->port()), second((*server)->port());
  first.Send(kGet);
  second.Send(kGet);
  ASSERT_TRUE(held.WaitFor(2));
  HttpTestClient third((*server)->port());
  EXPECT_TRUE(third.WaitForEnd());
  EXPECT_EQ((*server)->counts().refused, 1u);
  held.AnswerAll();
  EXPECT_EQ(first.ReadResponse().status, 200);
  EXPECT_EQ(second.ReadResponse().status, 200);
}

TEST(HostilePeerLimitTest, WhereThereIsNoRoomTheConnectionThatIsIdleLongestGivesWay) {
  // One thread, so that the connections become idle in the order of their calls.
  ApiFixture api({.service = {.paused = true}, .server = {.limits = {.connections = 3}, .connection_threads = 1}});
  HttpTestClient busy(api.port()), first(api.port()), second(api.port());
  const std::string body = R"({"prompt":"a","stream":true})";
  busy.Send(Post(absl::StrCat("Content-Length: ", body.size(), "\r\n"), body));
  ASSERT_TRUE(api.service().WaitForWatches(1));
  for (HttpTestClient* client : {&second, &first}) ASSERT_EQ(client->Call("GET", "/livez").status, 200);
  HttpTestClient third(api.port());
  EXPECT_EQ(third.Call("GET", "/livez").status, 200);
  EXPECT_TRUE(second.WaitForEnd());
  EXPECT_EQ(first.Call("GET", "/livez").status, 200);
  api.service().AllowSteps(4);
  EXPECT_THAT(busy.ReadUntil("image_generation.completed"), HasSubstr("200 OK"));
  EXPECT_EQ(api.server().counts().closed_idle, 1u);
}

// Blocks the thread of its connection.
class HeldThread final : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    if (request.Path() == "/held") {
      held_.Notify();
      released_.WaitForNotificationWithTimeout(absl::Seconds(60));
    }
    reply->Send({.status = 200, .headers = {}, .body = "{}"});
  }
  bool AnswersAtOnce(const HttpRequest&) const override { return true; }
  HttpResponse Refusal(int status, const std::string&, const std::string&) override {
    return {.status = status, .headers = {}, .body = ""};
  }

  bool WaitUntilHeld() { return held_.WaitForNotificationWithTimeout(absl::Seconds(60)); }
  void Release() { released_.Notify(); }

 private:
  absl::Notification held_, released_;
};

// A connection that needs room while the last idle one is closing must wait instead of being refused.
TEST(HostilePeerLimitTest, RoomThatIsBeingMadeIsRoom) {
  HeldThread handler;
  const auto server =
      HttpServer::Start({.limits = {.header_time = absl::Minutes(5)}, .connection_threads = 1}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpTestClient idle((*server)->port()), busy((*server)->port());
  EXPECT_EQ(idle.Call("GET", "/").status, 200);
  busy.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(handler.WaitUntilHeld());
  EXPECT_TRUE((*server)->MakeRoom());
  EXPECT_EQ((*server)->connections(), 2u);
  EXPECT_TRUE((*server)->MakeRoom());
  EXPECT_EQ((*server)->counts().closed_idle, 1u);
  handler.Release();
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_EQ(busy.ReadResponse().status, 200);
  busy.Close();
  WaitUntil("no connection", [&] { return (*server)->connections() == 0; });
  EXPECT_FALSE((*server)->MakeRoom());
}

TEST(HostilePeerLimitTest, PeersThatNeverFinishARequestGiveWayToThoseWhoDo) {
  ApiFixture api({.server = {.limits = {.connections = 4}}});
  std::vector<std::unique_ptr<HttpTestClient>> slow;
  for (const char* begun : {"", "GET", "GET / HTTP/1.1\r\nHost: localhost\r\n"}) {
    slow.push_back(std::make_unique<HttpTestClient>(api.port()));
    slow.back()->Send(begun);
  }
  slow.push_back(std::make_unique<HttpTestClient>(api.port()));
  slow.back()->Send(Post("Content-Length: 1000\r\n", "{"));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(HttpTestClient(api.port()).Call("GET", "/livez").status, 200);
}

TEST(HostilePeerLimitTest, ConnectionsLeaveTheDescriptorsAboveTheirsToOthers) {
  std::atomic<int> highest = std::numeric_limits<int>::max();
  ApiFixture api({.server = {.limits = {.highest_descriptor = [&highest] { return highest.load(); }}}});
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  // Each connection of this test uses two descriptors, because the client is in the same process.
  highest = next + 40;
  std::vector<std::unique_ptr<HttpTestClient>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<HttpTestClient>(api.port()));
    EXPECT_EQ(idle.back()->Call("GET", "/livez").status, 200) << i;
  }
  HttpTestClient client(api.port());
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
  EXPECT_GT(api.server().counts().closed_idle, 70u);
  EXPECT_LE(api.server().connections(), 21u);
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
}

TEST(HostilePeerLimitTest, EqualIdempotencyKeysAtOnceMakeOneJob) {
  ApiFixture api({.service = {.paused = true}});
  std::vector<std::string> jobs(8);
  std::vector<std::thread> clients;
  for (std::string& job : jobs) {
    clients.emplace_back([&] {
      const TestResponse response = api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", {{"Idempotency-Key", "same"}});
      job = response.Header("location");
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_NE(jobs[0], "");
  EXPECT_EQ(std::count(jobs.begin(), jobs.end(), jobs[0]), 8);
}

TEST(HostilePeerLimitTest, EqualRequestIdsAtOnceAreRequestsOfTheirOwn) {
  ApiFixture api({.service = {.paused = true}});
  std::vector<std::string> jobs(8);
  std::vector<std::thread> clients;
  for (std::string& job : jobs) {
    clients.emplace_back([&] {
      const TestResponse response = api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", {{"x-request-id", "same"}});
      EXPECT_EQ(response.Header("x-request-id"), "same");
      job = response.Header("location");
    });
  }
  for (std::thread& client : clients) client.join();
  std::sort(jobs.begin(), jobs.end());
  EXPECT_NE(jobs[0], "");
  EXPECT_EQ(std::unique(jobs.begin(), jobs.end()), jobs.end()) << "two requests became one job";
}

TEST(HostilePeerLimitTest, AnIdempotencyKeyUsedForAnotherBodyIsAConflict) {
  ApiFixture api;
  const std::vector<HttpHeader> key = {{"Idempotency-Key", "same"}};
  EXPECT_EQ(api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", key).status, 202);
  EXPECT_EQ(api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", key).status, 202);
  const TestResponse other = api.Call("POST", "/v1/jobs", R"({"prompt":"b"})", key);
  EXPECT_EQ(other.status, 409);
  EXPECT_EQ(other.Header("x-should-retry"), "false");
}

TEST(HostilePeerLimitTest, ThousandsOfDisconnectsAtEveryStageLeaveNothing) {
  ApiFixture api({.service = {.paused = true, .max_queued = 100000}});
  const std::string body = R"({"prompt":"a","stream":true})";
  const std::string request = Post(absl::StrCat("Content-Length: ", body.size(), "\r\n"), body);
  for (size_t i = 0; i < 2000; ++i) {
    HttpTestClient client(api.port());
    client.Send(request.substr(0, i % (request.size() + 1)));
    if (i % 3 == 0) client.ShutDownSending();
  }
  for (int i = 0; i < 50; ++i) {
    HttpTestClient client(api.port());
    client.Send(request);
    ASSERT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  }
  EXPECT_TRUE(api.service().WaitForWatches(0));
  EXPECT_TRUE(api.service().WaitForJobs(JobState::kRunning, 0));
  EXPECT_TRUE(api.service().WaitForJobs(JobState::kQueued, 0));
}

TEST(HostilePeerLimitTest, AServerThatEndsClosesStreamsAndLetsGoOfTheirJobs) {
  TestImageService service({.paused = true});
  CallGate gate(nullptr);
  ApiHandler handler(service, gate, {});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok());
  HttpTestClient client((*server)->port());
  const std::string body = R"({"prompt":"a","stream":true})";
  client.Send(Post(absl::StrCat("Content-Length: ", body.size(), "\r\n"), body));
  ASSERT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  *server = nullptr;
  EXPECT_TRUE(client.WaitForEnd());
  EXPECT_TRUE(service.WaitForWatches(0));
}

TEST(HostilePeerLimitTest, DrainingLetsARequestUnderWayFinish) {
  ApiFixture api({.service = {.paused = true}});
  HttpTestClient idle(api.port());
  ASSERT_EQ(idle.Call("GET", "/livez").status, 200);
  HttpTestClient client(api.port());
  client.Send(Post("Content-Length: 14\r\n", R"({"prompt":"a"})"));
  ASSERT_TRUE(api.service().WaitForWatches(1));
  std::thread drain([&] { api.server().Drain(absl::Seconds(60)); });
  EXPECT_TRUE(idle.WaitForEnd());
  api.service().AllowSteps(4);
  const TestResponse response = client.ReadResponse();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("connection"), "close");
  EXPECT_TRUE(client.WaitForEnd());
  client.Close();
  drain.join();
}

TEST(HostilePeerLimitTest, EveryAnswerAfterTheDrainBeganSaysThatItsConnectionCloses) {
  HeldReplies held;
  // Only the drain closes a connection that has not sent anything.
  const auto server = HttpServer::Start({.limits = {.header_time = absl::Minutes(5)}}, held);
  ASSERT_TRUE(server.ok()) << server.status();
  constexpr size_t kEach = 32;
  std::vector<std::unique_ptr<HttpTestClient>> idle, busy;
  for (size_t i = 0; i < kEach; ++i) {
    for (auto* clients : {&idle, &busy}) clients->push_back(std::make_unique<HttpTestClient>((*server)->port()));
    busy.back()->Send(kGet);
  }
  ASSERT_TRUE(held.WaitFor(kEach));
  std::thread drain([&] { (*server)->Drain(absl::Seconds(60)); });
  // Any idle connection may be closed first; from then on clients can notice the drain.
  EXPECT_TRUE(idle[kEach / 2]->WaitForEnd());
  held.AnswerAll();
  for (const auto& client : busy) {
    EXPECT_EQ(client->ReadResponse().Header("connection"), "close");
    EXPECT_TRUE(client->WaitForEnd());
    client->Close();
  }
  drain.join();
}

}  // namespace
}  // namespace tessera::server
