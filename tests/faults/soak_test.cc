// Tests a server under mixed load for a long time: clients submit, wait, follow, cancel and disconnect at any stage;
// workers are killed all the time and, in the first part, the server as well. Every acknowledged job must end
// correctly, and no resource of the server or of its oldest worker may grow.
//
// TESSERA_SOAK_MINUTES is the length of the whole run. Without it the test runs a few seconds with fake workers, too
// short for a trend.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/faults/holdings.h"
#include "tests/faults/test_server.h"
#include "tests/faults/trend.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

constexpr int kKinds = 6;  // different requests
constexpr int kClients = 6;
constexpr absl::Duration kSampled = absl::Seconds(1);

std::string Fields(int kind) {
  return absl::StrCat(R"("prompt": "red apple )", kind, R"(", "size": "64x64", "num_inference_steps": )", 4 + kind,
                      R"(, "seed": )", kind);
}

// The results of requests.
struct Outcomes {
  int acknowledged = 0, done = 0, failed = 0, cancelled = 0;
  int lost = 0;  // missing, never ended, or ended with an unexpected status
  int torn = 0;  // images that differ from the undisturbed run
  int hung_up = 0, refused = 0, unanswered = 0;
};

class SoakTest : public ::testing::TestWithParam<int> {
 protected:
  void Prepare(TestServer& server) {
    server.options().arguments = {"--no-supervisor"};  // so that process() is the measured process
    ASSERT_TRUE(server.Start());
    server.WaitUntilReady();
    for (int kind = 0; kind < kKinds; ++kind) {
      const TestResponse response = server.Call("POST", "/v1/jobs", absl::StrCat("{", Fields(kind), "}"));
      ASSERT_EQ(response.status, 202) << response.body;
      const std::string id(boost::json::parse(response.body).at("id").as_string());
      ASSERT_EQ(server.Ended(id), "done");
      undisturbed_.push_back(server.ImageBytes(server.Get(id)));
    }
    at_rest_ = HoldingsOf(server.process().pid()).value();
  }

  void Count(int Outcomes::*outcome) {
    const std::lock_guard lock(mutex_);
    ++(outcomes_.*outcome);
  }
  void Complain(int Outcomes::*outcome, const std::string& text) {
    Count(outcome);
    std::printf("%s\n", text.c_str());
  }

  // A job fails as the presumed cause if it was alone in a worker that died, three times.
  void CountFailure(const std::string& error) {
    if (absl::StrContains(error, "signal")) return Count(&Outcomes::failed);
    Complain(&Outcomes::lost, absl::StrCat("failed: ", error));
  }

  // Runs one job to its end. It may be followed or not, cancelled or not.
  void RunJob(TestServer& server, std::mt19937& random, const std::string& key) {
    const int kind = static_cast<int>(random() % kKinds);
    TestResponse accepted;
    const bool answered = WaitUntil("an answer to a job", [&] {
      accepted = server.Call("POST", "/v1/jobs", absl::StrCat("{", Fields(kind), "}"), key);
      return accepted.status == 202;
    });
    if (!answered) return Complain(&Outcomes::lost, absl::StrCat("HTTP ", accepted.status, ": ", accepted.body));
    Count(&Outcomes::acknowledged);
    const std::string id(boost::json::parse(accepted.body).at("id").as_string());
    bool cancelled = false;
    if (random() % 3 == 0) {
      if (random() % 2 == 0) WaitUntil("a job that runs", [&] { return server.StatusOf(id) != "queued"; });
      cancelled = true;  // also where the server is killed before it answers
      server.Call("DELETE", "/v1/jobs/" + id);
    } else if (random() % 2 == 0) {
      HttpTestClient follower(server.port());
      follower.Send(absl::StrCat("GET /v1/jobs/", id, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
      follower.ReadUntil(random() % 2 == 0 ? "event: step" : "event: done");
    }
    const std::string status = server.Ended(id);
    if (status == "cancelled" && cancelled) return Count(&Outcomes::cancelled);
    if (status != "done" && status != "failed") {
      return Complain(&Outcomes::lost, absl::StrCat(id, " is ", status));
    }
    boost::json::object ended;
    std::string image;
    WaitUntil("the result", [&] {
      ended = server.Get(id);
      if (ended.at("status").as_string() != status) return false;
      if (status == "done") image = server.ImageBytes(ended);
      return !absl::StartsWith(image, "HTTP 0");
    });
    if (status == "failed") return CountFailure(boost::json::serialize(ended.at("error")));
    Count(&Outcomes::done);
    if (image != undisturbed_[static_cast<size_t>(kind)]) Complain(&Outcomes::torn, id + " has another image");
  }

  void Generate(TestServer& server, std::mt19937& random) {
    const int kind = static_cast<int>(random() % kKinds);
    const TestResponse response = server.Call("POST", "/v1/images/generations", absl::StrCat("{", Fields(kind), "}"));
    if (response.status == 0) return Count(&Outcomes::unanswered);
    if (response.status == 429 || response.status == 503) return Count(&Outcomes::refused);
    if (response.status != 200) return CountFailure(response.body);
    std::string image;
    absl::Base64Unescape(std::string(boost::json::parse(response.body).at("data").at(0).at("b64_json").as_string()),
                         &image);
    Count(&Outcomes::done);
    if (image != undisturbed_[static_cast<size_t>(kind)]) Complain(&Outcomes::torn, "an answer with another image");
  }

  // Disconnects at a random time during a plain or streamed generation.
  void HangUp(TestServer& server, std::mt19937& random) {
    HttpTestClient client(server.port());
    const bool streams = random() % 2 == 0;
    const std::string body = absl::StrCat("{", Fields(static_cast<int>(random() % kKinds)),
                                          streams ? R"(, "stream": true, "partial_images": 2})" : "}");
    const std::string request = absl::StrCat(
        "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ",
        body.size(), "\r\n\r\n", body);
    client.Send(request.substr(0, random() % 8 == 0 ? random() % request.size() : request.size()));
    if (streams && random() % 2 == 0) client.ReadUntil("image_generation.partial_image");
    if (random() % 2 == 0) server.Call("GET", "/livez");  // by now the request sent before has arrived
    Count(&Outcomes::hung_up);
  }

  void Look(TestServer& server, std::mt19937& random) {
    constexpr const char* kTargets[] = {"/v1/models", "/v1/server", "/v1/jobs?limit=20", "/v1/jobs/none",
                                        "/openapi.json"};
    server.Call("GET", kTargets[random() % std::size(kTargets)]);
    server.Call("POST", "/v1/jobs", R"({"prompt": 7})");
  }

  void BeClient(TestServer& server, unsigned number) {
    std::mt19937 random(static_cast<unsigned>(GetParam() * kClients) + number);
    for (int i = 0; !stopping_; ++i) {
      switch (random() % 6) {
        case 0:
        case 1:
        case 2:
          RunJob(server, random, absl::StrCat("soak-", number, "-", i));
          break;
        case 3:
          Generate(server, random);
          break;
        case 4:
          HangUp(server, random);
          break;
        default:
          Look(server, random);
      }
    }
  }

  // Kills one of the workers but never `spared`.
  void KillWorker(TestServer& server, std::mt19937& random, pid_t spared) {
    std::vector<pid_t> workers = server.Workers();
    std::erase(workers, spared);
    if (workers.empty()) return;
    const pid_t worker = workers[random() % workers.size()];
    kill(worker, SIGKILL);
    EXPECT_TRUE(WaitUntilGone(worker));
    ++worker_kills_;
  }

  void KillServer(TestServer& server, bool in_order) {
    if (in_order) {
      EXPECT_EQ(server.Terminate(), 0);
    } else {
      server.Kill();
    }
    ++server_kills_;
    ASSERT_TRUE(server.Start());
  }

  void Sample(const std::string& whose, pid_t pid, double seconds) {
    const std::optional<Holdings> holdings = HoldingsOf(pid);
    ASSERT_TRUE(holdings.has_value()) << whose << " has ended";
    series_[whose + " resident MiB"].push_back({seconds, holdings->resident_mib});
    series_[whose + " descriptors"].push_back({seconds, holdings->descriptors});
    series_[whose + " threads"].push_back({seconds, holdings->threads});
    series_[whose + " segments"].push_back({seconds, holdings->segments});
  }

  // The length of the soak is the requested time.
  static void WaitForTime(absl::Time time) {
    WaitUntil("the time", [&] { return absl::Now() >= time; });
  }

  // For the first 30 % of the time the server dies as well, then it settles for 10 %, and the rest is sampled. Workers
  // die about every `pause`.
  void Disturb(TestServer& server, absl::Duration length, absl::Duration pause) {
    std::mt19937 random(static_cast<unsigned>(GetParam()));
    const absl::Time began = absl::Now();
    const auto passed = [&] { return absl::FDivDuration(absl::Now() - began, length); };
    for (int deaths = 0; passed() < 0.3; ++deaths) {
      WaitForTime(absl::Now() + pause * (0.5 + (random() % 1000) / 1000.0));
      if (deaths % 3 == 2) {
        ASSERT_NO_FATAL_FAILURE(KillServer(server, /*in_order=*/deaths % 2 == 0));
      } else {
        KillWorker(server, random, 0);
      }
    }
    server.WaitUntilReady();
    const pid_t oldest = server.Workers().front();
    absl::Time next_kill = absl::Now() + pause;
    for (absl::Time now = absl::Now(); passed() < 1; WaitForTime(now + kSampled)) {
      now = absl::Now();
      if (passed() > 0.4) {
        const double seconds = absl::ToDoubleSeconds(now - began);
        ASSERT_NO_FATAL_FAILURE(Sample("server", server.process().pid(), seconds));
        ASSERT_NO_FATAL_FAILURE(Sample("worker", oldest, seconds));
        series_["socket folders"].push_back({seconds, static_cast<double>(server.SocketFolders())});
        series_["worker processes"].push_back({seconds, static_cast<double>(server.Workers().size())});
      }
      if (now > next_kill) {
        KillWorker(server, random, oldest);
        next_kill = now + pause * (0.5 + (random() % 1000) / 1000.0);
      }
    }
  }

  void Run(TestServer& server, absl::Duration length, absl::Duration pause) {
    ASSERT_NO_FATAL_FAILURE(Prepare(server));
    std::vector<std::thread> clients;
    for (unsigned client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] { BeClient(server, client); });
    }
    Disturb(server, length, pause);
    WaitUntil("every outcome that there must be", [this] {
      const std::lock_guard lock(mutex_);
      return outcomes_.done > outcomes_.failed && outcomes_.cancelled > 0;
    });
    stopping_ = true;
    for (std::thread& client : clients) client.join();
    const Outcomes& of = outcomes_;
    std::printf(
        "acked %d done %d failed %d cancelled %d lost %d torn %d; hung up %d, refused %d, unanswered %d; %d workers "
        "and %d servers killed\n",
        of.acknowledged, of.done, of.failed, of.cancelled, of.lost, of.torn, of.hung_up, of.refused, of.unanswered,
        worker_kills_, server_kills_);
    EXPECT_EQ(of.lost, 0);
    EXPECT_EQ(of.torn, 0);
    EXPECT_GT(of.done, of.failed);
    EXPECT_GT(of.cancelled, 0);
  }

  // Checks that an idle server has released everything that clients caused.
  void ExpectRest(TestServer& server) {
    WaitUntil("an idle server", [&] {
      const TestResponse info = server.Call("GET", "/v1/server");
      return info.status == 200 && boost::json::parse(info.body).at("running_jobs") == 0 &&
             boost::json::parse(info.body).at("queued_jobs") == 0;
    });
    WaitUntil("no connections", [&] {
      const std::optional<Holdings> holdings = HoldingsOf(server.process().pid());
      return holdings.has_value() && holdings->descriptors <= at_rest_.descriptors &&
             holdings->segments <= at_rest_.segments;
    });
  }

  void Judge() {
    ASSERT_FALSE(series_.empty());
    for (const auto& [name, samples] : series_) {
      ASSERT_GE(samples.size(), size_t{2 * kTrendBlocks}) << "run it for longer";
      const Trend trend = TrendOf(samples);
      // Memory changes in pages and arenas; of the other resources, even one more counts.
      const double resolution = absl::StrContains(name, "MiB") ? std::max(1.0, trend.level / 50) : 1;
      const bool grows = trend.Grows(resolution);
      std::printf("%-20s %9.1f  %+8.2f an hour (%+.2f to %+.2f) %s\n", name.c_str(), trend.level, trend.slope * 3600,
                  trend.least * 3600, trend.most * 3600, grows ? "GROWS" : "");
      EXPECT_FALSE(grows) << name;
    }
  }

  std::vector<std::string> undisturbed_;  // images, by kind
  Holdings at_rest_;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  Outcomes outcomes_;  // guarded by mutex_ while clients run
  int worker_kills_ = 0, server_kills_ = 0;
  std::map<std::string, std::vector<tessera::Sample>> series_;
};

INSTANTIATE_TEST_SUITE_P(, SoakTest, ::testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(SoakTest, MixedLoadLosesNothingAndLeavesNothing) {
  TestServer server({.worker = FAKE_WORKER, .script = "step-time=5", .groups = {"{model: TINY, count: 2}"}});
  Run(server, absl::Seconds(6), absl::Milliseconds(400));
  ExpectRest(server);
  EXPECT_EQ(server.Terminate(), 0);
}

#ifdef HAS_REAL_WORKER
// No value: the few seconds of a normal test run.
std::optional<absl::Duration> LengthAskedFor() {
  const char* text = std::getenv("TESSERA_SOAK_MINUTES");
  if (text == nullptr) return std::nullopt;
  double minutes = 0;
  if (!absl::SimpleAtod(text, &minutes) || !(minutes > 0)) ADD_FAILURE() << "invalid number of minutes: " << text;
  return absl::Minutes(minutes);
}

TEST_P(SoakTest, TheSameWithTheEmbeddedModelAndNothingGrows) {
  // Replicas of one rank and one thread: with more, the rounding would depend on the other jobs of the batch. The short
  // retention keeps the stored jobs from growing.
  TestServer server(
      {.groups = {"{model: emoji, layout: serial, threads: 1, count: 2}"}, .settings = "retention: 1m\n"});
  const std::optional<absl::Duration> length = LengthAskedFor();
  Run(server, length.value_or(absl::Seconds(6)), length.has_value() ? absl::Seconds(5) : absl::Milliseconds(800));
  if (length.has_value()) Judge();
  ExpectRest(server);
  EXPECT_EQ(server.Terminate(), 0);
}
#endif

}  // namespace
}  // namespace tessera
