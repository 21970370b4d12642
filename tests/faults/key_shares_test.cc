// Tests the shares of the keys file, over HTTP with fake workers: how the images are divided among keys that have work
// queued.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/calls/api_keys.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

constexpr int kJobs = 10, kImages = 10;  // per key and round
constexpr size_t kCounted = 80;          // images that start while both keys have work queued

struct Key {
  std::string name, secret, line;
};

class KeySharesTest : public ::testing::Test {
 protected:
  KeySharesTest() : server_({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}}) {
    for (Key* key : {&one_, &other_, &first_}) {
      const absl::StatusOr<server::NewKey> made = server::NewApiKey(key->name);
      key->secret = made->secret;
      key->line = made->line;
    }
    server_.options().settings = absl::StrCat("keys_file: ", server_.folder(), "/keys.txt\n");
    server_.options().script = absl::StrCat("gate=", server_.folder(), "/gate");
  }

  // Replaces the whole file, as an operator would.
  void Share(const std::string& of_one, const std::string& of_other) {
    server_.Write("new-keys.txt",
                  absl::StrCat(one_.line, of_one, "\n", other_.line, of_other, "\n", first_.line, "\n"));
    std::filesystem::rename(server_.folder() + "/new-keys.txt", server_.folder() + "/keys.txt");
  }

  TestResponse Call(const Key& key, const std::string& method, const std::string& target,
                    const std::string& body = "") {
    return HttpTestClient(server_.port()).Call(method, target, body, {{"Authorization", "Bearer " + key.secret}});
  }

  std::string Submit(const Key& key, const std::string& body) {
    const TestResponse accepted = Call(key, "POST", "/v1/jobs", body);
    EXPECT_EQ(accepted.status, 202) << accepted.body;
    return accepted.status == 202 ? std::string(boost::json::parse(accepted.body).at("id").as_string()) : "";
  }

  std::string StatusOf(const Key& key, const std::string& job) {
    const TestResponse response = Call(key, "GET", "/v1/jobs/" + job);
    return response.status == 200 ? std::string(boost::json::parse(response.body).at("status").as_string()) : "";
  }

  // Returns the jobs of all images so far, in the order in which the images were started.
  std::vector<std::string> Started() const {
    std::vector<std::pair<double, std::string>> starts;
    std::ifstream file(server_.folder() + "/trace.json");
    for (std::string line; std::getline(file, line);) {
      absl::string_view text = absl::StripSuffix(line, ",");
      text = absl::StripPrefix(absl::StripPrefix(text, "["), ",");
      boost::system::error_code error;
      const boost::json::value event = boost::json::parse(std::string(text), error);
      if (error || !event.is_object() || !event.as_object().contains("id")) continue;
      if (event.at("ph") != "b" || event.at("name") != "encode") continue;
      const std::vector<std::string> id = absl::StrSplit(std::string(event.at("id").as_string()), '/');
      starts.emplace_back(event.at("ts").to_number<double>(), id[0]);
    }
    std::stable_sort(starts.begin(), starts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> jobs;
    for (const auto& [time, job] : starts) jobs.push_back(job);
    return jobs;
  }

  // Both keys queue more images than are counted while a job of a third key blocks the group. Returns how many images
  // of each key start then. Counting begins with the first image of `other_`, because images of `one_`, which submits
  // first, may start before `other_` has any.
  std::map<std::string, int> Round() {
    std::filesystem::remove(server_.folder() + "/gate");
    const std::string gated = Submit(first_, R"({"prompt": "gated", "size": "64x64", "num_inference_steps": 1})");
    WaitUntil("the first job runs", [&] { return StatusOf(first_, gated) == "running"; });
    const std::string body =
        absl::StrCat(R"({"prompt": "x", "size": "64x64", "num_inference_steps": 1, "n": )", kImages, "}");
    std::map<std::string, std::string> key_of;
    for (int job = 0; job < kJobs; ++job) {
      for (const Key& key : {one_, other_}) key_of[Submit(key, body)] = key.name;
    }
    server_.Write("gate", "");
    for (const auto& job : key_of) {
      const Key& key = job.second == one_.name ? one_ : other_;
      WaitUntil("the jobs end", [&] { return StatusOf(key, job.first) == "done"; });
    }
    std::map<std::string, int> counted;
    size_t images = 0;
    for (const std::string& job : Started()) {
      if (!key_of.contains(job) || images == kCounted) continue;
      if (images == 0 && key_of.at(job) == one_.name) continue;
      ++counted[key_of.at(job)];
      ++images;
    }
    EXPECT_EQ(images, kCounted);
    return counted;
  }

  Key one_ = {.name = "one"}, other_ = {.name = "other"}, first_ = {.name = "first"};
  TestServer server_;
};

TEST_F(KeySharesTest, WorkFollowsTheSharesOfTheKeysAndWhatIsWrittenOfThemLater) {
  Share("", " share=3");
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  std::map<std::string, int> images = Round();
  EXPECT_NEAR(images["other"], 3.0 * images["one"], 0.2 * 3 * images["one"]);
  Share(" share=2", " share=2");
  images = Round();
  EXPECT_NEAR(images["other"], images["one"], 0.2 * images["one"]);
  // An invalid file leaves the shares unchanged.
  Share(" share=0", " share=2");
  images = Round();
  EXPECT_NEAR(images["other"], images["one"], 0.2 * images["one"]);
  Share(" share=4", "");
  images = Round();
  EXPECT_NEAR(images["one"], 4.0 * images["other"], 0.2 * 4 * images["other"]);
}

}  // namespace
}  // namespace tessera
