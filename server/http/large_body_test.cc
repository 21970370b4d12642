// Bodies above the ordinary limit: which requests may have them, what they occupy, and what becomes of clients that are
// slow, leave, or find no room.
#include <gmock/gmock.h>

#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/time/steady_time.h"
#include "tests/support/api_fixture.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kKiB = 1024;
constexpr size_t kOrdinary = 4 * kKiB;
constexpr size_t kAllowed = 200 * kKiB;
constexpr size_t kBytes = 100 << 20;  // allowed to jobs

std::string HeadOf(const std::string& path, const std::string& headers) {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n");
}
std::string WithLength(const std::string& path, size_t bytes, const std::string& headers = "") {
  return HeadOf(path, absl::StrCat(headers, "Content-Length: ", bytes, "\r\n"));
}
std::string InChunks(const std::string& path) { return HeadOf(path, "Transfer-Encoding: chunked\r\n"); }
std::string Chunk(size_t bytes) { return absl::StrFormat("%x\r\n%s\r\n", bytes, std::string(bytes, 'a')); }

// Reads large bodies on /large and /held, refuses /refused, and keeps the requests to /held with their bodies until
// Release.
class UploadHandler final : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    const std::lock_guard lock(mutex_);
    bodies_.push_back(request.has_body ? std::to_string(request.body.size()) : "unread");
    if (!request.has_body) return reply->Send({.status = 401, .headers = {}, .body = ""});
    if (request.Path() != "/held") return reply->Send({.status = 200, .headers = {}, .body = bodies_.back()});
    held_.emplace_back(std::move(request), std::move(reply));
    changed_.notify_all();
  }
  std::optional<size_t> MostBodyBytes(const HttpRequest& request) const override {
    if (request.Path() == "/refused") return std::nullopt;
    return request.Path() == "/large" || request.Path() == "/held" ? kAllowed : 0;
  }
  HttpResponse Refusal(int status, const std::string&, const std::string&) override {
    return {.status = status, .headers = {}, .body = ""};
  }

  bool WaitForHeld(size_t requests) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return held_.size() >= requests; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    for (const auto& [request, reply] : held_) reply->Send({.status = 200, .headers = {}, .body = "released"});
    held_.clear();
  }
  // The size of every body, or "unread".
  std::vector<std::string> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> bodies_;
  std::vector<std::pair<HttpRequest, std::shared_ptr<HttpReply>>> held_;
};

class UploadServer {
 public:
  explicit UploadServer(HttpLimits limits = {}) {
    limits.body_bytes = kOrdinary;
    if (limits.body_time == HttpLimits().body_time) limits.body_time = absl::Minutes(5);  // a stall is not the client's
    limits.header_time = absl::Minutes(5);
    if (limits.receiving_bytes > kKiB * kKiB) limits.receiving_bytes = 256 * kKiB;
    auto server = HttpServer::Start({.limits = limits}, handler_);
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  uint16_t port() const { return server_->port(); }
  UploadHandler& handler() { return handler_; }
  BodyBudgetUse use() const { return server_->counts().bodies; }

 private:
  UploadHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST(LargeBodyTest, IsReadWhereTheHandlerAllowsIt) {
  UploadServer server;
  HttpTestClient client(server.port());
  for (const size_t bytes : {kOrdinary, kOrdinary + 1, 3 * kOrdinary, kAllowed}) {
    client.Send(WithLength("/large", bytes) + std::string(bytes, 'a'));
    EXPECT_EQ(client.ReadResponse().body, absl::StrCat(bytes));
    client.Send(InChunks("/large"));
    for (size_t sent = 0; sent < bytes; sent += kKiB) client.Send(Chunk(std::min(kKiB, bytes - sent)));
    client.Send("0\r\n\r\n");
    EXPECT_EQ(client.ReadResponse().body, absl::StrCat(bytes));
  }
  EXPECT_EQ(client.Call("POST", "/other", std::string(kOrdinary, 'a')).status, 200);
  // A request is destroyed after it was answered.
  WaitUntil("no room is held", [&] { return server.use().held == 0; });
}

TEST(LargeBodyTest, AboveTheLimitOfItsPathIsRefusedByItsLength) {
  UploadServer server;
  for (const std::string& sent :
       {WithLength("/other", kOrdinary + 1), WithLength("/large", kAllowed + 1), WithLength("/large", size_t{1} << 62),
        InChunks("/other") + absl::StrFormat("%x\r\n", kOrdinary + 1), InChunks("/other") + Chunk(kOrdinary) + "1\r\n",
        InChunks("/large") + absl::StrFormat("%x\r\n", kAllowed + 1),
        InChunks("/large") + Chunk(kOrdinary) + absl::StrFormat("%x\r\n", kAllowed - kOrdinary + 1),
        InChunks("/large") + Chunk(kAllowed) + "ffffffffffffffff\r\n"}) {
    HttpTestClient client(server.port());
    client.Send(sent);
    EXPECT_EQ(client.ReadResponse().status, 413) << sent.substr(0, 100);
  }
  EXPECT_THAT(server.handler().bodies(), IsEmpty());
  EXPECT_EQ(server.use().held, 0u);
}

TEST(LargeBodyTest, OfARefusedRequestIsNotRead) {
  UploadServer server;
  for (const std::string& sent : {WithLength("/refused", kOrdinary + 1), WithLength("/refused", size_t{1} << 62),
                                  WithLength("/refused", 1, "Expect: 100-continue\r\n"),
                                  InChunks("/refused") + absl::StrFormat("%x\r\n", kOrdinary + 1)}) {
    HttpTestClient client(server.port());
    client.Send(sent);
    const TestResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, 401) << sent;
    EXPECT_EQ(response.Header("connection"), "close");
    EXPECT_TRUE(client.WaitForEnd());
  }
  EXPECT_THAT(server.handler().bodies(), ::testing::Each("unread"));
  EXPECT_EQ(server.use().most_held, 0u);
}

TEST(LargeBodyTest, IsAskedForOnceThereIsRoom) {
  UploadServer server({.receiving_bytes = 64 * kKiB});
  HttpTestClient first(server.port()), second(server.port()), third(server.port());
  const std::string expect = "Expect: 100-continue\r\n";
  first.Send(WithLength("/held", 40 * kKiB, expect));
  EXPECT_EQ(first.ReadResponse().status, 100);
  second.Send(WithLength("/large", 40 * kKiB, expect));
  WaitUntil("a body waits", [&] { return server.use().waiting == 1; });
  third.Send(WithLength("/large", kAllowed, expect));
  EXPECT_EQ(third.ReadResponse().status, 413) << "it could never fit";
  first.Send(std::string(40 * kKiB, 'a'));
  ASSERT_TRUE(server.handler().WaitForHeld(1));
  EXPECT_EQ(server.use().waiting, 1u);
  server.handler().Release();
  EXPECT_EQ(second.ReadResponse().status, 100);
  second.Send(std::string(40 * kKiB, 'a'));
  EXPECT_EQ(second.ReadResponse().body, absl::StrCat(40 * kKiB));
}

TEST(LargeBodyTest, WaitsForRoomInTheOrderOfArrival) {
  UploadServer server({.receiving_bytes = 64 * kKiB});
  HttpTestClient first(server.port()), second(server.port()), third(server.port());
  first.Send(WithLength("/held", 40 * kKiB) + std::string(40 * kKiB, 'a'));
  ASSERT_TRUE(server.handler().WaitForHeld(1));
  second.Send(WithLength("/large", 50 * kKiB) + std::string(50 * kKiB, 'a'));
  WaitUntil("one waits", [&] { return server.use().waiting == 1; });
  third.Send(WithLength("/large", 10 * kKiB) + std::string(10 * kKiB, 'a'));
  WaitUntil("two wait, although the second of them would fit", [&] { return server.use().waiting == 2; });
  server.handler().Release();
  EXPECT_EQ(second.ReadResponse().body, absl::StrCat(50 * kKiB));
  EXPECT_EQ(third.ReadResponse().body, absl::StrCat(10 * kKiB));
  EXPECT_LE(server.use().most_held, 64 * kKiB);
}

TEST(LargeBodyTest, HoldsItsRoomUntilTheHandlerReleasesIt) {
  UploadServer server;
  HttpTestClient client(server.port());
  client.Send(InChunks("/held") + Chunk(50 * kKiB));
  WaitUntil("room for all that it may become", [&] { return server.use().held == kAllowed; });
  client.Send(Chunk(50 * kKiB) + "0\r\n\r\n");
  ASSERT_TRUE(server.handler().WaitForHeld(1));
  EXPECT_EQ(server.use().held, 100 * kKiB) << "room for what it is";
  client.Close();
  EXPECT_EQ(server.use().held, 100 * kKiB);
  server.handler().Release();
  EXPECT_EQ(server.use().held, 0u);
}

TEST(LargeBodyTest, ReturnsItsRoomIfItsClientLeaves) {
  UploadServer server({.receiving_bytes = 64 * kKiB});
  HttpTestClient first(server.port()), second(server.port()), third(server.port());
  first.Send(WithLength("/large", 40 * kKiB) + std::string(20 * kKiB, 'a'));
  WaitUntil("the first has room", [&] { return server.use().held == 40 * kKiB; });
  second.Send(WithLength("/large", 50 * kKiB) + std::string(20 * kKiB, 'a'));
  WaitUntil("the second waits", [&] { return server.use().waiting == 1; });
  second.Close();
  third.Send(WithLength("/large", 60 * kKiB) + std::string(60 * kKiB, 'a'));
  WaitUntil("the third waits", [&] { return server.use().waiting == 2; });
  first.Close();
  EXPECT_EQ(third.ReadResponse().body, absl::StrCat(60 * kKiB));
  WaitUntil("no room is held", [&] { return server.use().held == 0; });
}

TEST(LargeBodyTest, WithoutRoomInTimeIsRefused) {
  UploadServer server({.receiving_bytes = 64 * kKiB, .body_time = absl::Milliseconds(100)});
  HttpTestClient first(server.port()), second(server.port());
  first.Send(WithLength("/held", 40 * kKiB) + std::string(40 * kKiB, 'a'));
  ASSERT_TRUE(server.handler().WaitForHeld(1));
  second.Send(WithLength("/large", 40 * kKiB));
  EXPECT_EQ(second.ReadResponse().status, 503);
  EXPECT_EQ(server.use().waiting, 0u);
  server.handler().Release();
  EXPECT_EQ(first.ReadResponse().body, "released");
}

TEST(LargeBodyTest, OfAClientBelowTheRateIsGivenUp) {
  UploadServer server({.body_rate = size_t{1} << 30, .body_time = absl::Milliseconds(100)});
  HttpTestClient client(server.port());
  client.Send(WithLength("/large", 40 * kKiB) + std::string(30 * kKiB, 'a'));
  EXPECT_EQ(client.ReadResponse().status, 408);
  EXPECT_EQ(server.use().held, 0u);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST(LargeBodyTest, OfAClientThatKeepsTheRateMayTakeLongerThanASmallOne) {
  // At this rate, an interval needs less than one byte.
  UploadServer server({.body_rate = 1, .body_time = absl::Milliseconds(50)});
  HttpTestClient client(server.port());
  client.Send(WithLength("/large", 40 * kKiB));
  const absl::Duration begun = base::SteadyNow();
  size_t sent = 0;
  while (base::SteadyNow() < begun + absl::Milliseconds(200) && sent < 39 * kKiB) {
    sent += client.Send("a") ? 1 : 0;
    std::this_thread::yield();
  }
  WaitUntil("some intervals", [&] { return base::SteadyNow() > begun + absl::Milliseconds(200); });
  client.Send(std::string(40 * kKiB - sent, 'a'));
  EXPECT_EQ(client.ReadResponse().body, absl::StrCat(40 * kKiB));
}

// The API, with a key.
class LargeApiBodyTest : public ::testing::Test {
 protected:
  LargeApiBodyTest() {
    const absl::StatusOr<NewKey> key = NewApiKey("alice");
    EXPECT_TRUE(key.ok());
    secret_ = key->secret;
    folder_.Write("keys", key->line + "\n");
    auto keys = ApiKeys::Load(folder_.path() + "/keys", [](const absl::Status&) {});
    EXPECT_TRUE(keys.ok()) << keys.status();
    api_ = std::make_unique<ApiFixture>(ApiFixtureOptions{.keys = *std::move(keys)});
  }

  std::string Headers() const {
    return absl::StrCat("Authorization: Bearer ", secret_, "\r\nContent-Type: application/json\r\n");
  }
  // The answer to a request whose body is not sent.
  TestResponse AnswerTo(const std::string& head) {
    HttpTestClient client(api_->port());
    client.Send(head);
    return client.ReadResponse();
  }

  TestFolder folder_;
  std::string secret_;
  std::unique_ptr<ApiFixture> api_;
};

TEST_F(LargeApiBodyTest, IsNotReadBeforeEveryOtherCheckHasPassed) {
  const std::string json = "Content-Type: application/json\r\n";
  for (const char* expect : {"", "Expect: 100-continue\r\n"}) {
    const auto status = [&](const std::string& path, const std::string& headers, size_t bytes = kBytes) {
      return AnswerTo(WithLength(path, bytes, headers + expect)).status;
    };
    EXPECT_EQ(status("/v1/jobs", json), 401);
    EXPECT_EQ(status("/v1/jobs", json + "Authorization: Bearer sk-tessera-wrong\r\n"), 401);
    EXPECT_EQ(status("/v1/jobs", Headers() + "Authorization: Bearer sk\r\n"), 401) << "two keys";
    EXPECT_EQ(status("/v1/jobs", Headers() + "Host: localhost\r\n"), 400) << "two hosts";
    EXPECT_EQ(status("/v1/jobs", Headers() + "Origin: https://evil.example\r\n"), 403);
    EXPECT_EQ(status("/v1/jobs", Headers() + "Content-Encoding: gzip\r\n"), 415);
    EXPECT_EQ(status("/v1/jobs", absl::StrCat("Authorization: Bearer ", secret_, "\r\n")), 415);
    EXPECT_EQ(status("/v1/jobs?a=b", Headers()), 400);
    EXPECT_EQ(status("/v1/nothing", Headers()), 404);
    EXPECT_EQ(status("/v1/models", Headers()), 405);
    EXPECT_EQ(status("/v1/images/generations", Headers()), 413) << "it has no pictures";
    EXPECT_EQ(status("/v1/jobs", Headers(), (256 << 20) + 1), 413);
  }
  const TestResponse response = AnswerTo(WithLength("/v1/jobs", kBytes, json));
  EXPECT_EQ(response.Header("www-authenticate"), "Bearer");
  EXPECT_THAT(response.body, HasSubstr("missing_api_key"));
  EXPECT_EQ(AnswerTo(HeadOf("/v1/jobs", json + "Transfer-Encoding: chunked\r\n") + "6400000\r\n").status, 401);
  EXPECT_EQ(api_->server().counts().bodies.most_held, 0u);
}

TEST_F(LargeApiBodyTest, OfAJobIsReadWithAKey) {
  const std::string body = absl::StrCat(R"({"prompt":"a","user":")", std::string(2 << 20, 'u'), "\"}");
  HttpTestClient client(api_->port());
  client.Send(WithLength("/v1/jobs", body.size(), Headers()) + body);
  const TestResponse response = client.ReadResponse();
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("\"param\":\"user\"")) << "the body was read";
  EXPECT_EQ(api_->server().counts().bodies.most_held, body.size());
}

TEST_F(LargeApiBodyTest, WithoutRoomIsAnErrorThatSaysWhenToRepeatIt) {
  const HttpResponse refusal = api_->handler().Refusal(503, "full", "");
  const TestResponse response = {.status = refusal.status, .headers = refusal.headers, .body = refusal.body};
  EXPECT_EQ(response.Header("retry-after"), "1");
  EXPECT_EQ(response.Header("x-should-retry"), "true");
  EXPECT_THAT(response.body, HasSubstr("uploads_full"));
}

// Reads bodies of any size and counts those that are `expected`.
class ComparingHandler final : public HttpHandler {
 public:
  explicit ComparingHandler(const std::string& expected) : expected_(expected) {}

  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    reply->Send({.status = request.body == expected_ ? 200 : 400, .headers = {}, .body = "{}"});
  }
  std::optional<size_t> MostBodyBytes(const HttpRequest&) const override { return size_t{1} << 30; }
  HttpResponse Refusal(int status, const std::string&, const std::string&) override {
    return {.status = status, .headers = {}, .body = ""};
  }

 private:
  const std::string& expected_;
};

// Returns a value of this process, in bytes.
size_t MemoryOf(absl::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    size_t kibibytes = 0;
    if (absl::ConsumePrefix(&rest, name) && absl::ConsumeSuffix(&rest, "kB") && absl::SimpleAtoi(rest, &kibibytes)) {
      return kibibytes * kKiB;
    }
  }
  return 0;
}

TEST(LargeBodyTest, ThirtyTwoClientsAtOnceShareTheMemory) {
  constexpr size_t kMiB = kKiB * kKiB, kBudget = 64 * kMiB, kBody = 8 * kMiB;
  std::string body(kBody, '\0');
  std::iota(body.begin(), body.end(), '\0');
  ComparingHandler handler(body);
  const auto server = HttpServer::Start(
      {.limits = {.receiving_bytes = kBudget, .body_rate = 1, .body_time = absl::Minutes(5)}}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM, the most resident memory
  const size_t before = MemoryOf("VmHWM:");
  std::vector<int> statuses(32);
  std::vector<std::thread> clients;
  for (int& status : statuses) {
    clients.emplace_back([&] {
      HttpTestClient client((*server)->port());
      client.Send(WithLength("/", kBody));
      client.Send(body);
      status = client.ReadResponse().status;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(statuses, ::testing::Each(200));
  WaitUntil("no room is held", [&] { return (*server)->counts().bodies.held == 0; });
  EXPECT_LE((*server)->counts().bodies.most_held, kBudget);
  EXPECT_GE((*server)->counts().bodies.most_held, 2 * kBody) << "they are read at once";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The bodies have 256 MiB together. Some memory that was freed is still resident.
  ASSERT_GT(before, 0u);
  EXPECT_LT(MemoryOf("VmHWM:") - before, kBudget + 32 * kMiB);
#endif
}

}  // namespace
}  // namespace tessera::server
