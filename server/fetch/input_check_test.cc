#include "server/fetch/input_check.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <mutex>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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
using ::testing::SizeIs;

using Request = ScriptedWebServer::Request;
using Peer = ScriptedWebServer::Peer;

std::string WholeBody(const CheckedInput& input, size_t most) {
  CheckedInputBody body(input);
  std::string whole, part(most, '\0');
  while (const size_t count = body.Read(part.data(), most)) whole.append(part, 0, count);
  EXPECT_EQ(whole.size(), body.bytes());
  return whole;
}

TEST(CheckedInputBodyTest, IsTheDocumentedJsonInPartsOfAnySize) {
  std::string long_picture(200001, '\0');
  for (size_t i = 0; i < long_picture.size(); ++i) long_picture[i] = static_cast<char>(i * 31);
  const CheckedInput input = {.prompts = {"a \"cat\"\n", "ü"},
                              .negative_prompts = {"dog\\"},
                              .pictures = {"a", long_picture, "", "abc"},
                              .tenant = "farm"};
  for (const size_t most : {1, 3, 1000, 1000000}) {
    const boost::json::value body = boost::json::parse(WholeBody(input, most));
    const auto url = [](const std::string& picture) {
      return absl::StrCat("data:image/png;base64,", absl::Base64Escape(picture));
    };
    EXPECT_EQ(body, (boost::json::value{{"prompt", "a \"cat\"\n\nü"},
                                        {"negative_prompt", "dog\\"},
                                        {"images", {url("a"), url(long_picture), url(""), url("abc")}},
                                        {"key", "farm"}}));
  }
  EXPECT_EQ(WholeBody({.prompts = {"a"}, .tenant = "anonymous"}, 7),
            R"({"prompt":"a","negative_prompt":"","images":[],"key":"anonymous"})");
}

TEST(VerdictTest, IsReadWithItsReasonAndCategories) {
  EXPECT_TRUE(ParseVerdict(R"({"allowed": true})")->allowed);
  const Verdict verdict =
      ParseVerdict(R"({"score": 0.9, "allowed": false, "reason": "a\nb", "categories": ["violence", "x\u0007"]})")
          .value();
  EXPECT_FALSE(verdict.allowed);
  EXPECT_EQ(verdict.reason, "a?b");
  EXPECT_THAT(verdict.categories, ElementsAre("violence", "x?"));
  EXPECT_EQ(ParseVerdict(R"({"allowed": false, "reason": null, "categories": null})")->reason, "");
}

TEST(VerdictTest, IsCutBetweenCharacters) {
  std::string reason, categories;
  for (int i = 0; i < 400; ++i) absl::StrAppend(&reason, "ü");
  for (int i = 0; i < 40; ++i) absl::StrAppend(&categories, i == 0 ? "" : ",", "\"", reason, "\"");
  const Verdict verdict =
      ParseVerdict(absl::StrCat(R"({"allowed":false,"reason":"a)", reason, R"(","categories":[)", categories, "]}"))
          .value();
  EXPECT_THAT(verdict.reason, SizeIs(kMaxReasonBytes - 1));
  EXPECT_THAT(verdict.categories, SizeIs(kMaxCategories));
  EXPECT_THAT(verdict.categories[0], SizeIs(kMaxCategoryBytes));
}

TEST(VerdictTest, IsNoOtherAnswer) {
  for (const char* body : {"", "true", "[]", "{}", "allowed", R"({"allowed": "true"})", R"({"allowed": 1})",
                           R"({"allowed": null})", R"({"Allowed": true})", R"({"allowed": true)",
                           R"({"allowed": true} x)", R"({"allowed": false, "allowed": true})",
                           R"({"allowed": false, "reason": 3})", R"({"allowed": false, "categories": "violence"})",
                           R"({"allowed": false, "categories": [3]})", "{\"allowed\": true, \"reason\": \"\xff\"}"}) {
    EXPECT_FALSE(ParseVerdict(body).ok()) << body;
  }
  EXPECT_FALSE(
      ParseVerdict(absl::StrCat(R"({"allowed": true, "a": ")", std::string(kMaxVerdictBytes, 'a'), "\"}")).ok());
}

std::string Url(const ScriptedWebServer& server) {
  return absl::StrCat("http://127.0.0.1:", server.port(), "/check?a=b");
}

InputCheck::Options OptionsFor(const std::string& url) {
  return {.url = ParseHttpUrl(url).value(), .timeout = absl::Minutes(1)};
}

void ExpectNotAvailable(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ErrorCodeForCallers(status), "input_check_unavailable");
  EXPECT_EQ(status.message(), "the check of prompts and pictures is not available at present; try again later");
}

TEST(InputCheckTest, AllowsWhatTheServiceAllows) {
  ScriptedWebServer server(Sending(OkAnswer(R"({"allowed": true})")));
  InputCheck::Options options = OptionsFor(Url(server));
  options.headers = [] { return std::vector<std::string>{"Authorization: Bearer secret"}; };
  const std::string picture(300000, 'p');
  EXPECT_TRUE(InputCheck(options).Check({.prompts = {"a cat"}, .pictures = {picture}, .tenant = "farm"}).ok());
  ASSERT_THAT(server.Requests(), SizeIs(1));
  const Request request = server.Requests()[0];
  EXPECT_THAT(request.head, HasSubstr("POST /check?a=b HTTP/1.1\r\n"));
  EXPECT_THAT(request.head, HasSubstr("Content-Type: application/json"));
  EXPECT_THAT(request.head, HasSubstr("Authorization: Bearer secret"));
  EXPECT_THAT(request.head, Not(HasSubstr("Expect")));
  const boost::json::value body = boost::json::parse(request.body);
  EXPECT_EQ(boost::json::value_to<std::string>(body.at("prompt")), "a cat");
  EXPECT_EQ(boost::json::value_to<std::string>(body.at("images").at(0)),
            absl::StrCat("data:image/png;base64,", absl::Base64Escape(picture)));
}

TEST(InputCheckTest, ARefusalIsTheModerationErrorWithTheReason) {
  ScriptedWebServer server(
      Sending(OkAnswer(R"({"allowed": false, "reason": "it shows a person", "categories": ["likeness"]})")));
  const absl::Status status = InputCheck(OptionsFor(Url(server))).Check({.prompts = {"a"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorCodeForCallers(status), "moderation_blocked");
  EXPECT_EQ(ErrorField(status), "");
  EXPECT_EQ(status.message(),
            "the request was refused by this server's check of prompts and pictures: it shows a person (categories: "
            "likeness)");
}

TEST(InputCheckTest, WithoutAClearAnswerTheRequestIsRefusedAndTheOperatorLearnsWhy) {
  std::mutex mutex;
  std::vector<std::string> logged;
  for (const char* answer :
       {"", "x", "HTTP/1.1 500 Error\r\nContent-Length: 17\r\n\r\n{\"allowed\": true}",
        "HTTP/1.1 201 Created\r\nContent-Length: 17\r\n\r\n{\"allowed\": true}",
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"allowed\": true}",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{",
        "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"}) {
    ScriptedWebServer server(Sending(answer));
    InputCheck::Options options = OptionsFor(Url(server));
    options.log = [&](const base::LogLine& line) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(line.event, "input_check");
      logged.push_back(line.text);
    };
    ExpectNotAvailable(InputCheck(options).Check({.prompts = {"a"}}));
    EXPECT_THAT(server.Requests(), SizeIs(1)) << "no redirect is followed, and nothing is sent again";
  }
  ASSERT_THAT(logged, SizeIs(8));
  EXPECT_THAT(logged[2], HasSubstr("it answered with status 500"));
  EXPECT_THAT(logged[5], HasSubstr("the answer's allowed is not true or false"));
  EXPECT_THAT(logged[6], HasSubstr("too large"));
}

TEST(InputCheckTest, AnAnswerThatDoesNotComeInTimeRefuses) {
  for (const char* begin : {"", "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"allowed\":"}) {
    ScriptedWebServer server([begin](const Request&, Peer& peer) {
      peer.Send(begin);
      peer.WaitUntilClosed();
    });
    InputCheck::Options options = OptionsFor(Url(server));
    options.timeout = absl::Milliseconds(300);
    ExpectNotAvailable(InputCheck(options).Check({.prompts = {"a"}}));
  }
}

TEST(InputCheckTest, WithoutAServiceANameASlotOrAHeadersFileRefuses) {
  ScriptedWebServer server(Sending(OkAnswer(R"({"allowed": true})")));
  InputCheck::Options no_name = OptionsFor("http://check.example/");
  no_name.resolver = [](const std::string&, absl::Duration) { return absl::NotFoundError("the name has no address"); };
  ExpectNotAvailable(InputCheck(no_name).Check({.prompts = {"a"}}));
  InputCheck::Options no_slot = OptionsFor(Url(server));
  no_slot.concurrency = 0;
  no_slot.timeout = absl::Milliseconds(1);
  ExpectNotAvailable(InputCheck(no_slot).Check({.prompts = {"a"}}));
  InputCheck::Options no_headers = OptionsFor(Url(server));
  no_headers.headers = [] { return absl::NotFoundError("input_check.headers_file cannot be read"); };
  ExpectNotAvailable(InputCheck(no_headers).Check({.prompts = {"a"}}));
  EXPECT_EQ(server.connections(), 0);
}

TEST(InputCheckTest, ConnectsToTheAddressOfItsNameAndUsesNoProxy) {
  ScriptedWebServer server(Sending(OkAnswer(R"({"allowed": true})"))),
      proxy(Sending(OkAnswer(R"({"allowed": false})")));
  InputCheck::Options options = OptionsFor(absl::StrCat("http://check.example:", server.port(), "/"));
  options.resolver = [](const std::string& host, absl::Duration) {
    EXPECT_EQ(host, "check.example");
    return std::vector{*ParseIpAddress("127.0.0.1")};
  };
  setenv("http_proxy", absl::StrCat("http://127.0.0.1:", proxy.port()).c_str(), 1);
  const absl::Status status = InputCheck(options).Check({.prompts = {"a"}});
  unsetenv("http_proxy");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(proxy.connections(), 0);
}

TEST(InputCheckTest, SendsNothingToAServiceWithAnotherCertificate) {
  TestFolder folder;
  const TestAuthority authority("authority");
  authority.Write(folder / "authority.pem");
  authority.Issue("localhost", {.certificate_chain = folder / "a.pem", .private_key = folder / "a.key"});
  WriteSelfSigned("localhost", {.certificate_chain = folder / "b.pem", .private_key = folder / "b.key"});
  for (const bool is_trusted : {true, false}) {
    const std::string files = folder / (is_trusted ? "a" : "b");
    ScriptedWebServer server(Sending(OkAnswer(R"({"allowed": true})")), files + ".pem", files + ".key");
    InputCheck::Options options = OptionsFor(absl::StrCat("https://127.0.0.1:", server.port(), "/"));
    options.authority_file = folder / "authority.pem";
    const absl::Status status = InputCheck(options).Check({.prompts = {"a"}});
    EXPECT_EQ(status.ok(), is_trusted) << status;
    EXPECT_THAT(server.Requests(), SizeIs(is_trusted ? 1 : 0));
  }
}

TEST(InputCheckTest, PicturesBeyondTheBoundAreNotSent) {
  ScriptedWebServer server(Sending(OkAnswer(R"({"allowed": true})")));
  InputCheck::Options options = OptionsFor(Url(server));
  options.most_picture_bytes = 5;
  const absl::Status status = InputCheck(options).Check({.prompts = {"a"}, .pictures = {"abc", "def"}});
  EXPECT_EQ(ErrorField(status), "images");
  EXPECT_EQ(status.message(), "images have 6 bytes as PNG; this server checks at most 5 of one request");
  EXPECT_EQ(server.connections(), 0);
}

}  // namespace
}  // namespace tessera::server
