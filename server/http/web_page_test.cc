// Tests of the page's files and their headers over a real socket. tests/web/ tests the page's behaviour.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/http/web_files.h"
#include "tests/support/api_fixture.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

ApiFixtureOptions WithPage() {
  ApiFixtureOptions options;
  options.api.web_page = true;
  return options;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> PathsOfThePage() {
  std::vector<std::string> paths = {"/"};
  for (const WebFile& file : WebFiles()) paths.push_back(absl::StrCat("/web/", file.name));
  return paths;
}

// Returns the directives of a policy in order.
std::vector<std::string> Directives(const std::string& policy) { return absl::StrSplit(policy, "; "); }

TEST(WebPageTest, EachFileIsServedAsItStandsInTheSources) {
  ApiFixture api(WithPage());
  EXPECT_EQ(api.Call("GET", "/").body, FileText("server/web/index.html"));
  size_t files = 0;
  for (const auto& source : std::filesystem::directory_iterator("server/web")) {
    const std::string name = source.path().filename();
    const TestResponse response = api.Call("GET", absl::StrCat("/web/", name));
    EXPECT_EQ(response.status, 200) << name;
    EXPECT_FALSE(response.body.empty()) << name;
    EXPECT_EQ(response.body, FileText(source.path())) << name;
    ++files;
  }
  EXPECT_EQ(WebFiles().size(), files);
}

TEST(WebPageTest, FilesHaveTheirMediaTypes) {
  ApiFixture api(WithPage());
  EXPECT_EQ(api.Call("GET", "/").Header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(api.Call("GET", "/web/style.css").Header("content-type"), "text/css; charset=utf-8");
  EXPECT_EQ(api.Call("GET", "/web/app.js").Header("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(api.Call("GET", "/web/icon.svg").Header("content-type"), "image/svg+xml");
}

TEST(WebPageTest, ThePolicyAllowsNothingThatIsInlineOrElsewhere) {
  ApiFixture api(WithPage());
  for (const std::string& path : PathsOfThePage()) {
    const std::string policy = api.Call("GET", path).Header("content-security-policy");
    EXPECT_THAT(Directives(policy),
                IsSupersetOf({"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
                              "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}))
        << path;
    EXPECT_THAT(policy, AllOf(Not(HasSubstr("unsafe")), Not(HasSubstr("http")), Not(HasSubstr("*")))) << path;
  }
}

TEST(WebPageTest, EveryFileHasTheHeadersThatKeepOthersOut) {
  ApiFixture api(WithPage());
  for (const std::string& path : PathsOfThePage()) {
    const TestResponse response = api.Call("GET", path);
    EXPECT_EQ(response.Header("x-content-type-options"), "nosniff") << path;
    EXPECT_EQ(response.Header("x-frame-options"), "DENY") << path;
    EXPECT_EQ(response.Header("referrer-policy"), "no-referrer") << path;
    EXPECT_EQ(response.Header("cross-origin-opener-policy"), "same-origin") << path;
    EXPECT_EQ(response.Header("cross-origin-resource-policy"), "same-origin") << path;
    EXPECT_NE(response.Header("permissions-policy"), "") << path;
  }
}

TEST(WebPageTest, AFileThatTheBrowserHasIsNotSentAgain) {
  ApiFixture api(WithPage());
  for (const std::string& path : PathsOfThePage()) {
    const TestResponse first = api.Call("GET", path);
    const std::string tag = first.Header("etag");
    ASSERT_THAT(tag, StartsWith("\"")) << path;
    // There is only one such header; the API's "no-store" is not added.
    std::vector<std::string> cache;
    for (const HttpHeader& header : first.headers) {
      if (header.name == "cache-control" || header.name == "Cache-Control") cache.push_back(header.value);
    }
    EXPECT_THAT(cache, ElementsAre("no-cache")) << path;
    for (const std::string& named : {tag, absl::StrCat("W/", tag), absl::StrCat("\"a\", ", tag), std::string("*")}) {
      HttpTestClient client(api.port());
      client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: ", named, "\r\n\r\n"));
      const TestResponse again = client.ReadResponse(/*has_body=*/false);
      EXPECT_EQ(again.status, 304) << path << " " << named;
      EXPECT_EQ(again.Header("etag"), tag);
    }
    EXPECT_EQ(api.Call("GET", path, "", {{"If-None-Match", "\"another\""}}).status, 200) << path;
  }
}

TEST(WebPageTest, FilesThatDifferHaveTagsThatDiffer) {
  ApiFixture api(WithPage());
  std::set<std::string> tags;
  for (const WebFile& file : WebFiles()) tags.insert(api.Call("GET", absl::StrCat("/web/", file.name)).Header("etag"));
  EXPECT_EQ(tags.size(), WebFiles().size());
}

TEST(WebPageTest, TheFilesNameNoOtherHostAndHoldNothingInline) {
  for (const WebFile& file : WebFiles()) {
    std::string text = file.content;
    // The name of SVG's namespace is not an address that is loaded.
    text = std::regex_replace(text, std::regex(R"(http://www\.w3\.org/2000/svg)"), "");
    EXPECT_FALSE(std::regex_search(text, std::regex(R"((https?:)?//[a-z0-9.-]+\.[a-z]{2,})"))) << file.name;
    if (file.name != "index.html") continue;
    EXPECT_THAT(text, AllOf(Not(HasSubstr("<style")), Not(HasSubstr(" style="))));
    EXPECT_FALSE(std::regex_search(text, std::regex(R"(<script(?![^>]*\bsrc=))"))) << "a script stands inline";
    EXPECT_FALSE(std::regex_search(text, std::regex(R"(\son[a-z]+=)"))) << "a handler stands inline";
  }
}

TEST(WebPageTest, NeedsNoKeyAndTheApiStillDoes) {
  ApiFixtureOptions options = WithPage();
  const TestFolder folder;
  const std::string file = folder.path() + "/keys.txt";
  std::ofstream(file) << NewApiKey("me")->line << "\n";
  auto keys = ApiKeys::Load(file, [](const absl::Status&) {});
  ASSERT_TRUE(keys.ok()) << keys.status();
  options.keys = *std::move(keys);
  ApiFixture api(std::move(options));
  for (const std::string& path : PathsOfThePage()) EXPECT_EQ(api.Call("GET", path).status, 200) << path;
  EXPECT_EQ(api.Call("GET", "/v1/models").status, 401);
}

TEST(WebPageTest, AnAddressThatCameWithAQueryShowsThePage) {
  ApiFixture api(WithPage());
  EXPECT_EQ(api.Call("GET", "/?from=a-letter").status, 200);
}

TEST(WebPageTest, OtherNamesAndMethodsAreRefused) {
  ApiFixture api(WithPage());
  for (const char* path : {"/web/", "/web/none.js", "/web/../web/app.js", "/web/%2e%2e%2fapp.js", "/index.html"}) {
    const TestResponse response = api.Call("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(response.Header("content-security-policy"), "") << path;
  }
  EXPECT_EQ(api.Call("POST", "/", "{}").status, 405);
}

TEST(WebPageTest, ANameThatTheServerDoesNotAnswerToGetsNoPage) {
  ApiFixture api(WithPage());
  HttpTestClient client(api.port());
  client.Send("GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 421);
}

TEST(WebPageTest, SwitchedOffThereIsNone) {
  ApiFixture api;
  for (const std::string& path : PathsOfThePage()) EXPECT_EQ(api.Call("GET", path).status, 404) << path;
  EXPECT_EQ(api.Call("GET", "/v1/models").status, 200);
}

}  // namespace
}  // namespace tessera::server
