// Tests of keys: who may call, how often, and that one key's jobs are invisible to another.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/api/job.h"
#include "tests/support/api_fixture.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

// A file of keys that is removed with the object.
class KeyFile {
 public:
  KeyFile() : path_(std::filesystem::temp_directory_path() / RandomName()) {}
  ~KeyFile() { std::filesystem::remove(path_); }

  // Adds a key with these limits and returns its secret.
  std::string Add(const std::string& name, const std::string& limits = "") {
    const absl::StatusOr<NewKey> key = NewApiKey(name);
    EXPECT_TRUE(key.ok()) << key.status();
    absl::StrAppend(&text_, key->line, " ", limits, "\n");
    Write(text_);
    return key->secret;
  }

  // Writes like an administrator: the whole file under another name, then a rename.
  void Write(const std::string& text) {
    const std::string fresh = path_.string() + ".new";
    std::ofstream(fresh) << text;
    std::filesystem::rename(fresh, path_);
  }

  std::unique_ptr<ApiKeys> Load() {
    auto keys = ApiKeys::Load(path_, [this](const absl::Status& status) { reports_.push_back(status); });
    EXPECT_TRUE(keys.ok()) << keys.status();
    return keys.ok() ? *std::move(keys) : nullptr;
  }

  const std::vector<absl::Status>& reports() const { return reports_; }

 private:
  static std::string RandomName() { return absl::StrCat("tessera-keys-", NewApiKey("x")->secret.substr(11, 16)); }

  const std::filesystem::path path_;
  std::string text_;
  std::vector<absl::Status> reports_;
};

std::vector<HttpHeader> Bearer(const std::string& secret) { return {{"Authorization", "Bearer " + secret}}; }

TEST(OwnershipTest, WithoutAKnownKeyNothingIsAnsweredButHealth) {
  KeyFile file;
  file.Add("alice");
  ApiFixture api({.keys = file.Load()});
  const TestResponse none = api.Call("GET", "/v1/models");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.Header("www-authenticate"), "Bearer");
  EXPECT_THAT(none.body, HasSubstr("missing_api_key"));
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer("sk-wrong")).status, 401);
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer("")).status, 401);
  EXPECT_EQ(api.Call("GET", "/v1/models", "", {{"Authorization", "Basic YTpi"}}).status, 401);
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer(std::string(10000, 'a'))).status, 401);
  EXPECT_EQ(api.Call("POST", "/v1/images/generations", R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(api.Call("GET", "/livez").status, 200);
  EXPECT_EQ(api.Call("GET", "/readyz").status, 200);
}

TEST(OwnershipTest, TwoAuthorizationHeadersAreRefused) {
  KeyFile file;
  const std::string secret = file.Add("alice");
  ApiFixture api({.keys = file.Load()});
  std::vector<HttpHeader> headers = Bearer(secret);
  EXPECT_EQ(api.Call("GET", "/v1/models", "", headers).status, 200);
  headers.push_back(headers[0]);
  EXPECT_EQ(api.Call("GET", "/v1/models", "", headers).status, 401);
}

TEST(OwnershipTest, JobsImagesAndStreamsOfAnotherKeyAreNotThere) {
  KeyFile file;
  const std::string alice = file.Add("alice");
  const std::string bob = file.Add("bob");
  ApiFixture api({.keys = file.Load()});
  const TestResponse submitted = api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", Bearer(alice));
  ASSERT_EQ(submitted.status, 202) << submitted.body;
  const std::string job = submitted.Header("location");
  ASSERT_TRUE(api.service().WaitForState(job.substr(9), JobState::kDone));
  const TestResponse done = api.Call("GET", job, "", Bearer(alice));
  ASSERT_EQ(done.status, 200);
  const std::string image = absl::StrCat(
      "/v1/images/", boost::json::parse(done.body).at("images").as_array()[0].at("id").as_string().c_str());
  EXPECT_EQ(api.Call("GET", image, "", Bearer(alice)).status, 200);
  EXPECT_EQ(api.Call("GET", job + "/events", "", Bearer(alice)).status, 200);
  for (const auto& [method, target] : std::vector<std::pair<std::string, std::string>>{
           {"GET", job}, {"DELETE", job}, {"GET", job + "/events"}, {"GET", image}}) {
    SCOPED_TRACE(absl::StrCat(method, " ", target));
    const TestResponse foreign = api.Call(method, target, "", Bearer(bob));
    EXPECT_EQ(foreign.status, 404);
    // The answer does not differ from that for an id that never existed.
    std::string other = target;
    other[other.find('-') + 1] ^= 1;
    EXPECT_EQ(foreign.body, api.Call(method, other, "", Bearer(bob)).body);
  }
  EXPECT_THAT(api.Call("GET", "/v1/jobs", "", Bearer(alice)).body, HasSubstr(job.substr(9)));
  EXPECT_THAT(api.Call("GET", "/v1/jobs", "", Bearer(bob)).body, HasSubstr(R"("data":[])"));
}

TEST(OwnershipTest, OneIdempotencyKeyOfTwoTenantsMakesTwoJobs) {
  KeyFile file;
  const std::string alice = file.Add("alice");
  const std::string bob = file.Add("bob");
  ApiFixture api({.keys = file.Load()});
  const auto submit = [&](const std::string& secret) {
    std::vector<HttpHeader> headers = Bearer(secret);
    headers.push_back({"Idempotency-Key", "one"});
    return api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", headers).Header("location");
  };
  EXPECT_EQ(submit(alice), submit(alice));
  EXPECT_NE(submit(alice), submit(bob));
}

TEST(OwnershipTest, AKeyThatIsTakenOutOfTheFileStopsWorkingAndOneThatIsAddedWorks) {
  KeyFile file;
  const std::string alice = file.Add("alice");
  ApiFixture api({.keys = file.Load()});
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer(alice)).status, 200);
  const std::string bob = file.Add("bob");
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer(bob)).status, 200);
  file.Write("# none\n");
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer(alice)).status, 401);
}

TEST(OwnershipTest, AFileThatCannotBeReadLeavesTheKeysInUse) {
  KeyFile file;
  const std::string alice = file.Add("alice");
  ApiFixture api({.keys = file.Load()});
  file.Write("alice sha256:broken\n");
  EXPECT_EQ(api.Call("GET", "/v1/models", "", Bearer(alice)).status, 200);
  ASSERT_EQ(file.reports().size(), 1u);
  EXPECT_THAT(std::string(file.reports()[0].message()), HasSubstr("line 1"));
}

TEST(OwnershipTest, AKeyThatHasUsedUpItsRateLearnsWhenToRetry) {
  KeyFile file;
  const std::string alice = file.Add("alice", "requests_per_minute=2");
  const std::string bob = file.Add("bob");
  ApiFixture api({.keys = file.Load()});
  const auto submit = [&](const std::string& secret) {
    return api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", Bearer(secret));
  };
  EXPECT_EQ(submit(alice).status, 202);
  EXPECT_EQ(submit(alice).status, 202);
  const TestResponse refused = submit(alice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.Header("x-should-retry"), "true");
  EXPECT_NE(refused.Header("retry-after"), "");
  EXPECT_EQ(submit(bob).status, 202);
}

TEST(OwnershipTest, AKeyMayQueueNoMoreThanItsJobs) {
  KeyFile file;
  const std::string alice = file.Add("alice", "queued_jobs=1");
  ApiFixture api({.service = {.paused = true}, .keys = file.Load()});
  EXPECT_EQ(api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", Bearer(alice)).status, 202);
  const TestResponse refused = api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", Bearer(alice));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("key_queue_full"));
}

TEST(CallGateTest, ABucketFillsEvenly) {
  absl::Time now = absl::UnixEpoch();
  CallGate gate(nullptr, [&] { return now; });
  Caller caller;
  caller.tenant = "a";
  caller.limits.requests_per_minute = 60;
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(gate.CountSubmission(caller).ok()) << i;
  EXPECT_FALSE(gate.CountSubmission(caller).ok());
  now += absl::Milliseconds(999);
  EXPECT_FALSE(gate.CountSubmission(caller).ok());
  now += absl::Milliseconds(2);
  EXPECT_TRUE(gate.CountSubmission(caller).ok());
  EXPECT_FALSE(gate.CountSubmission(caller).ok());
  // A clock that jumps back neither adds nor removes tokens.
  now -= absl::Hours(1);
  EXPECT_FALSE(gate.CountSubmission(caller).ok());
}

TEST(ApiKeysTest, ALineThatIsWrongIsNamed) {
  const std::string good = NewApiKey("a")->line;
  EXPECT_TRUE(ParseApiKeys(good + "  queued_jobs=3 # comment\n\n# more\n").ok());
  const auto error = [](const std::string& text) { return std::string(ParseApiKeys(text).status().message()); };
  EXPECT_THAT(error("\n" + good + "\n" + good), HasSubstr("line 3 of the keys: the name 'a' is given twice"));
  EXPECT_THAT(error("a"), HasSubstr("sha256:SALT:HASH"));
  EXPECT_THAT(error("a md5:00:00"), HasSubstr("sha256:SALT:HASH"));
  EXPECT_THAT(error("a/b " + good.substr(2)), HasSubstr("'a/b'"));
  EXPECT_THAT(error(good + " queue_jobs=3"), HasSubstr("did you mean 'queued_jobs'?"));
  EXPECT_THAT(error(good + " queued_jobs=0"), HasSubstr("it must be a number above 0"));
  EXPECT_THAT(error(good + " queued_jobs=1.5"), HasSubstr("queued_jobs is '1.5'"));
  EXPECT_THAT(error(good + " queued_device_seconds=nan"), HasSubstr("it must be a number"));
  for (const std::string share : {"0", "0.009", "100.1", "-1", "nan", "inf", "", "3x"}) {
    EXPECT_THAT(error(good + " share=" + share), HasSubstr("it must be a number from 0.01 to 100")) << share;
  }
  EXPECT_EQ(ParseApiKeys(good)->at(0).share, 1);
  EXPECT_EQ(ParseApiKeys(good + " share=0.01")->at(0).share, 0.01);
  EXPECT_EQ(ParseApiKeys(good + " share=1e2")->at(0).share, 100);
}

}  // namespace
}  // namespace tessera::server
