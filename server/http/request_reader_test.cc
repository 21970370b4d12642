#include "server/http/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"

namespace tessera::server {
namespace {

// Returns a line for each request or refusal that a reader makes of these bytes when they arrive in pieces of `piece`.
// Bodies above the ordinary limit of 64 may have up to `most` bytes.
std::string Read(const std::string& bytes, size_t piece, size_t most = 0) {
  const HttpLimits limits = {.header_bytes = 512, .body_bytes = 64};
  RequestReader reader(limits);
  std::string input, result;
  for (size_t begin = 0; begin < bytes.size(); begin += piece) {
    input.append(bytes, begin, piece);
    while (true) {
      const RequestReader::Progress progress = reader.Read(input);
      if (progress == RequestReader::Progress::kMore) break;
      if (progress == RequestReader::Progress::kLarge) {
        absl::StrAppend(&result, "large after ", reader.body_bytes(), ", ");
        if (const std::optional<size_t> room = reader.AllowLarge(most)) {
          absl::StrAppend(&result, "room ", *room, ", ");
          reader.ReserveLarge();
          continue;
        }
        return absl::StrCat(result, reader.refusal_status(), "\n");
      }
      if (progress == RequestReader::Progress::kRefused) {
        return absl::StrCat(result, reader.refusal_status(), " ", reader.refusal_reason(), "\n");
      }
      const bool keep_alive = reader.keep_alive();
      const HttpRequest request = reader.TakeRequest();
      absl::StrAppend(&result, request.method, " ", request.target, " ", request.headers.size(), " headers, body '",
                      request.body, "'", keep_alive ? "\n" : ", last\n");
      reader.Reset();
      if (input.empty()) break;
    }
  }
  return result;
}

struct Bytes {
  std::string bytes;
  std::string read;
};

TEST(RequestReaderTest, PiecesOfAnySizeAreReadAsTheWhole) {
  const std::vector<Bytes> rows = {
      {"GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a 1 headers, body ''\n"},
      {"GET /a HTTP/1.0\r\nHost: h\r\n\r\n", "GET /a 1 headers, body '', last\n"},
      {"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n", "GET /a 1 headers, body '', last\n"},
      {"GET http://h?b HTTP/1.1\r\nHost: g\r\n\r\n", "GET /?b 1 headers, body ''\n"},
      {"GET http://h:1/a HTTP/1.0\r\n\r\n", "GET /a 1 headers, body '', last\n"},
      {"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\n\r\n",
       "POST /a 1 headers, body 'abc'\nGET /b 0 headers, body ''\n"},
      {"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: u\r\n\r\nGET /b "
       "HTTP/1.1\r\n\r\n",
       "POST /a 2 headers, body 'abc'\nGET /b 0 headers, body ''\n"},
      {"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\n\r\n",
       "POST /a 1 headers, body ''\nGET /b 0 headers, body ''\n"},
      {"POST /a HTTP/1.1\r\nContent-Length: 65\r\n\r\n", "large after 0, 413\n"},
      {absl::StrCat("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n", std::string(65, 'a'),
                    "\r\n0\r\n\r\n"),
       "large after 0, 413\n"},
      {"POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "400 Transfer-Encoding is malformed, or is sent together with a Content-Length\n"},
      {absl::StrCat("GET /a HTTP/1.1\r\nA: ", std::string(600, 'a'), "\r\n\r\n"),
       "431 the header of the request is too large\n"},
  };
  for (const Bytes& row : rows) {
    for (size_t piece = 1; piece <= row.bytes.size(); ++piece) {
      ASSERT_EQ(Read(row.bytes, piece), row.read) << "in pieces of " << piece << ": " << row.bytes;
    }
  }
}

TEST(RequestReaderTest, LargeBodiesAreReadUpToWhatIsAllowed) {
  const std::string length = "POST /a HTTP/1.1\r\nContent-Length: ";
  const std::string chunked = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string a64(64, 'a'), a100(100, 'a'), next = "GET /b HTTP/1.1\r\n\r\n";
  const std::string body = absl::StrCat("POST /a 1 headers, body '", a100, "'\n"), get = "GET /b 0 headers, body ''\n";
  const std::vector<Bytes> rows = {
      {length + "100\r\n\r\n" + a100 + next, "large after 0, room 100, " + body + get},
      {length + "101\r\n\r\n", "large after 0, 413\n"},
      {length + "18446744073709551615\r\n\r\n", "large after 0, 413\n"},
      {chunked + "64\r\n" + a100 + "\r\n0\r\n\r\n" + next, "large after 0, room 100, " + body + get},
      {chunked + "40\r\n" + a64 + "\r\n24\r\n" + a64.substr(0, 36) + "\r\n0\r\n\r\n" + next,
       "large after 64, room 100, " + body + get},
      {chunked + "40\r\n" + a64 + "\r\n25\r\n", "large after 64, 413\n"},
      {chunked + "40\r\n" + a64 + "\r\nffffffffffffffff\r\n", "large after 64, 413\n"},
      {chunked + "40\r\n" + a64 + "\r\n1\r\na\r\n24\r\n",
       "large after 64, room 100, 413 the body of the request is too large\n"},
  };
  for (const Bytes& row : rows) {
    for (size_t piece = 1; piece <= row.bytes.size(); ++piece) {
      ASSERT_EQ(Read(row.bytes, piece, 100), row.read) << "in pieces of " << piece << ": " << row.bytes;
    }
  }
}

TEST(ResponseHeadTest, AValueCannotBeginAHeaderOfItsOwn) {
  const HttpResponse response = {.status = 200, .headers = {{"X", "a\r\nSet-Cookie: b\n\tc"}}, .body = "12345"};
  const std::string head = ResponseHead(response, BodyFraming::kLength, true);
  EXPECT_EQ(head, "HTTP/1.1 200 OK\r\nX: aSet-Cookie: b\tc\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n");
}

TEST(QueryTest, NamesAndValuesAreDecodedAndBrokenEscapesStay) {
  EXPECT_EQ(QueryValue("a=1&b=%41+%2B&a=2", "a"), "1");
  EXPECT_EQ(QueryValue("a=1&b=%41+%2B", "b"), "A +");
  EXPECT_EQ(QueryValue("a=%4&b=%zz", "a"), "%4");
  EXPECT_EQ(QueryValue("%61=1", "a"), "1");
  EXPECT_EQ(QueryValue("a", "a"), "");
  EXPECT_EQ(QueryValue("a=1", "b"), std::nullopt);
  EXPECT_EQ(DecodePath("a+b%2Fc%"), "a+b/c%");
}

}  // namespace
}  // namespace tessera::server
