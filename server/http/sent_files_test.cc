// Tests of picture files that are read while they are sent: what clients get, what slow clients occupy, and what
// happens if a file cannot be read to its end.
#include <gmock/gmock.h>

#include <atomic>
#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/http/piece_turns.h"
#include "tests/support/api_fixture.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kPiece = 64 << 10;
// More than the buffers of both ends of a connection hold.
constexpr size_t kLarge = 16 << 20;

TEST(PieceTurnsTest, AreGivenInTheOrderInWhichTheyWereAskedFor) {
  const auto turns = std::make_shared<PieceTurns>(2);
  std::vector<PieceTurns::Turn> held(5);
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    turns->Ask([&, i](PieceTurns::Turn turn) {
      order.push_back(i);
      held[static_cast<size_t>(i)] = std::move(turn);
    });
  }
  EXPECT_THAT(order, testing::ElementsAre(0, 1));
  held[1] = nullptr;
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2));
  held[0] = held[2] = nullptr;
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
  held.clear();
  turns->Ask([&](const PieceTurns::Turn&) { order.push_back(5); });
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(PieceTurnsTest, AreAtLeastOne) {
  bool begun = false;
  std::make_shared<PieceTurns>(0)->Ask([&](const PieceTurns::Turn&) { begun = true; });
  EXPECT_TRUE(begun);
}

// Reads another source and calls a function before each read.
class WatchedSource final : public base::ByteSource {
 public:
  using BeforeRead = std::function<absl::Status(uint64_t offset, size_t count)>;
  WatchedSource(base::SharedBytes bytes, BeforeRead before) : bytes_(std::move(bytes)), before_(std::move(before)) {}

  uint64_t size() const override { return bytes_->size(); }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    if (absl::Status status = before_(offset, count); !status.ok()) return status;
    return bytes_->Read(offset, count);
  }

 private:
  const base::SharedBytes bytes_;
  const BeforeRead before_;
};

std::function<base::SharedBytes(base::SharedBytes)> Watched(WatchedSource::BeforeRead before) {
  return [before = std::move(before)](base::SharedBytes bytes) {
    return std::make_shared<WatchedSource>(std::move(bytes), before);
  };
}

std::string Generation(const std::string& version, const std::string& body) {
  return absl::StrCat("POST /v1/images/generations HTTP/", version,
                      "\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body);
}

// The path and the bytes of a finished picture.
struct Picture {
  std::string path;
  std::string bytes;
};
Picture Draw(ApiFixture& api, const std::string& more = "") {
  const TestResponse response =
      api.Call("POST", "/v1/images/generations", absl::StrCat(R"({"prompt":"a","response_format":"url")", more, "}"));
  const boost::json::value answer = boost::json::parse(response.body);
  const std::string url(answer.at("data").at(0).at("url").as_string());
  const std::string path = url.substr(url.find("/v1/"));
  const std::string id = path.substr(path.rfind('/') + 1);
  return {path, *base::ReadAll(*api.service().OpenImage({.tenant = "anonymous"}, id)->bytes)};
}

std::string Get(const std::string& path) { return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"); }

// Returns a client that has read the head of an answer, or some of its body, and reads no more.
std::unique_ptr<HttpTestClient> SlowReader(uint16_t port, const std::string& request) {
  auto client = std::make_unique<HttpTestClient>(port);
  client->Send(request);
  EXPECT_THAT(client->ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK"));
  return client;
}

TEST(SentFilesTest, EveryAnswerHasTheBytesOfTheFile) {
  for (const size_t size : {size_t{0}, kPiece - 1, kPiece, kPiece + 1, 5 * kPiece + 2}) {
    SCOPED_TRACE(size);
    ApiFixture api({.service = {.min_file_bytes = size}});
    const Picture picture = Draw(api);
    const TestResponse response = api.Call("GET", picture.path);
    EXPECT_TRUE(response.body == picture.bytes);
    EXPECT_EQ(response.Header("content-length"), absl::StrCat(picture.bytes.size()));
    EXPECT_EQ(response.Header("content-type"), "image/png");

    const TestResponse json = api.Call("POST", "/v1/images/generations", R"({"prompt":"a","n":3,"seed":1})");
    EXPECT_EQ(json.Header("content-length"), absl::StrCat(json.body.size()));
    const boost::json::value answer = boost::json::parse(json.body);
    ASSERT_EQ(answer.at("data").as_array().size(), 3u);
    std::vector<std::string> files;
    for (const boost::json::value& image : answer.at("data").as_array()) {
      std::string file;
      ASSERT_TRUE(absl::Base64Unescape(std::string(image.at("b64_json").as_string()), &file));
      files.push_back(file);
    }
    EXPECT_TRUE(files[0] == Draw(api, R"(,"seed":1)").bytes);
    EXPECT_TRUE(files[1] == Draw(api, R"(,"seed":2)").bytes);

    for (const char* version : {"1.0", "1.1"}) {
      HttpTestClient client(api.port());
      client.Send(Generation(version, R"({"prompt":"a","n":3,"seed":1,"stream":true})"));
      const std::string events = client.ReadUntil(absl::StrCat(version) == "1.0" ? "no such text" : "\r\n0\r\n\r\n");
      EXPECT_THAT(events, StartsWith("HTTP/1.1 200 OK"));
      // Images end in any order.
      for (const std::string& file : files) {
        EXPECT_NE(events.find(absl::StrCat("\"b64_json\":\"", absl::Base64Escape(file), "\"")), std::string::npos)
            << version;
      }
    }
  }
}

TEST(SentFilesTest, AHeadRequestGetsTheLengthAndReadsNothing) {
  std::atomic<int> reads = 0;
  ApiFixture api({.service = {.min_file_bytes = 3 * kPiece, .file_of = Watched([&](uint64_t, size_t) {
                                                              ++reads;
                                                              return absl::OkStatus();
                                                            })}});
  const Picture picture = Draw(api);
  const int before = reads;
  HttpTestClient client(api.port());
  const TestResponse head = client.Call("HEAD", picture.path);
  EXPECT_EQ(head.Header("content-length"), absl::StrCat(3 * kPiece));
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
  EXPECT_EQ(reads, before);
}

TEST(SentFilesTest, RequestsThatWereSentAheadAreAnsweredInOrder) {
  ApiFixture api({.service = {.min_file_bytes = 3 * kPiece + 1}});
  const Picture picture = Draw(api);
  HttpTestClient client(api.port());
  client.Send(absl::StrCat(Get(picture.path), Get("/livez"), Get(picture.path)));
  EXPECT_TRUE(client.ReadResponse().body == picture.bytes);
  EXPECT_EQ(client.ReadResponse().body, R"({"status":"ok"})");
  EXPECT_TRUE(client.ReadResponse().body == picture.bytes);
}

// Clients that read nothing do not hold the only piece that all connections may hold together.
TEST(SentFilesTest, ReadersThatTakeNothingHoldUpNoOther) {
  ApiFixture api({.service = {.min_file_bytes = kLarge}, .server = {.limits = {.sending_bytes = kPiece}}});
  const Picture picture = Draw(api);
  std::vector<std::unique_ptr<HttpTestClient>> slow;
  for (int i = 0; i < 4; ++i) slow.push_back(SlowReader(api.port(), Get(picture.path)));
  slow.push_back(SlowReader(api.port(), Generation("1.1", R"({"prompt":"a"})")));
  slow.push_back(SlowReader(api.port(), Generation("1.1", R"({"prompt":"a","stream":true})")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(api.Call("GET", picture.path).body == picture.bytes);
  // The server may notice later that the others were closed.
  WaitUntil("the slow ones alone are connected", [&] { return api.server().connections() == slow.size(); });
}

TEST(SentFilesTest, AReaderThatTakesNothingIsGivenUpAfterItsTime) {
  ApiFixture api(
      {.service = {.min_file_bytes = kLarge}, .server = {.limits = {.write_time = absl::Milliseconds(200)}}});
  const auto slow = SlowReader(api.port(), Get(Draw(api).path));
  WaitUntil("no connection", [&] { return api.server().connections() == 0; });
}

TEST(SentFilesTest, AFileThatCannotBeReadToItsEndEndsTheConnection) {
  std::atomic<bool> fails = false;
  ApiFixture api({.service = {.min_file_bytes = 10 * kPiece, .file_of = Watched([&](uint64_t offset, size_t count) {
                                                               return fails && offset + count > 4 * kPiece
                                                                          ? absl::DataLossError("it was cut short")
                                                                          : absl::OkStatus();
                                                             })}});
  const Picture picture = Draw(api);
  fails = true;
  HttpTestClient client(api.port());
  client.Send(Get(picture.path));
  const std::string cut = client.ReadUntil("no such text");
  EXPECT_THAT(cut.substr(0, 400), HasSubstr(absl::StrCat("Content-Length: ", 10 * kPiece, "\r\n")));
  EXPECT_LT(cut.size(), 5 * kPiece);
  for (const char* body : {R"({"prompt":"a"})", R"({"prompt":"a","stream":true})"}) {
    for (const char* version : {"1.0", "1.1"}) {
      HttpTestClient generating(api.port());
      generating.Send(Generation(version, body));
      const std::string answer = generating.ReadUntil("no such text");
      EXPECT_THAT(answer, Not(HasSubstr("\"seed\""))) << "which comes after the picture";
      EXPECT_THAT(answer, Not(HasSubstr("\r\n0\r\n\r\n")));
    }
  }
  fails = false;
  EXPECT_TRUE(api.Call("GET", picture.path).body == picture.bytes);
}

TEST(SentFilesTest, ReadersThatDisconnectInTheMiddleLeaveNothing) {
  ApiFixture api({.service = {.min_file_bytes = kLarge}, .server = {.limits = {.sending_bytes = kPiece}}});
  const Picture picture = Draw(api);
  for (int i = 0; i < 20; ++i) {
    HttpTestClient client(api.port());
    client.Send(Get(picture.path));
    if (i % 2 == 0) client.ReadUntil("\r\n\r\n");
  }
  WaitUntil("no connection", [&] { return api.server().connections() == 0; });
  EXPECT_TRUE(api.Call("GET", picture.path).body == picture.bytes);
}

TEST(SentFilesTest, AServerThatEndsClosesThoseThatAreRead) {
  absl::Notification reading, go_on;
  std::atomic<bool> watched = false;
  TestImageService service({.min_file_bytes = kLarge, .file_of = Watched([&](uint64_t offset, size_t) {
                                                        if (offset > 0 && watched.exchange(false)) {
                                                          reading.Notify();
                                                          go_on.WaitForNotificationWithTimeout(absl::Seconds(60));
                                                        }
                                                        return absl::OkStatus();
                                                      })});
  CallGate gate(nullptr);
  ApiHandler handler(service, gate, {});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok());
  HttpTestClient drawing((*server)->port());
  const TestResponse drawn =
      drawing.Call("POST", "/v1/images/generations", R"({"prompt":"a","response_format":"url"})");
  const std::string url(boost::json::parse(drawn.body).at("data").at(0).at("url").as_string());
  const std::string get = Get(url.substr(url.find("/v1/")));
  const auto slow = SlowReader((*server)->port(), get);
  watched = true;
  HttpTestClient client((*server)->port());
  client.Send(get);
  ASSERT_TRUE(reading.WaitForNotificationWithTimeout(absl::Seconds(60)));
  std::thread end([&] { *server = nullptr; });
  EXPECT_TRUE(client.WaitForEnd());
  EXPECT_TRUE(slow->WaitForEnd());
  go_on.Notify();
  end.join();
}

}  // namespace
}  // namespace tessera::server
