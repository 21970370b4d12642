// Checks every value of /metrics after a run of the service with fake workers through all its edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/time/steady_time.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/calls/api_keys.h"
#include "server/listeners/server_edges.h"
#include "server/scheduling/shape_class.h"
#include "server/serving/durable_image_service.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pair;

using Figures = std::map<std::string, double>;

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.Write("tiny/model_index.json", "{}");
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    setenv("TESSERA_FAKE_WORKER",
           absl::StrCat("gate=", folder_ / "gate", " start-of-pear=error start-of-lemon=die").c_str(), 1);
    absl::StatusOr<std::unique_ptr<server::DurableImageService>> service =
        server::DurableImageService::Start({.data_folder = folder_ / "data",
                                            .groups = {{.name = "tiny", .load = {.model = folder_ / "tiny"}}},
                                            .limits = {.max_queued_jobs = 2},
                                            .first_back_off = absl::Milliseconds(1),
                                            .vfs = disk_.vfs(),
                                            .log = [](const std::string&) {}});
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    const std::string keys = absl::StrCat(Key("me", {}), "\n", Key("few", {.queued_jobs = 1}), "\n",
                                          Key("slow", {.requests_per_minute = 1}), "\n");
    absl::StatusOr<server::ServerConfig> config = server::ReadServerConfig(
        absl::StrCat("listen: {http: {port: 0}, grpc: off, admin: {port: 0}}\ngroups: [{model: tiny}]\n",
                     "keys_file: ", folder_.Write("keys.txt", keys), "\n"));
    ASSERT_TRUE(config.ok()) << config.status();
    absl::StatusOr<std::unique_ptr<server::ServerEdges>> edges = server::ServerEdges::Start(*config, *service_, {});
    ASSERT_TRUE(edges.ok()) << edges.status();
    edges_ = *std::move(edges);
    WaitUntil("ready", [&] { return service_->Ready().ok(); });
  }

  void TearDown() override {
    edges_.reset();
    service_.reset();
  }

  // Creates a key, keeps its secret, and returns its line in the keys file.
  std::string Key(const std::string& name, const server::KeyLimits& limits) {
    const absl::StatusOr<server::NewKey> key = server::NewApiKey(name, limits);
    EXPECT_TRUE(key.ok()) << key.status();
    secrets_[name] = key->secret;
    return key->line;
  }

  TestResponse Call(const std::string& key, const std::string& method, const std::string& target,
                    const std::string& body = "") {
    return HttpTestClient(edges_->http_port())
        .Call(method, target, body, {{"Authorization", "Bearer " + secrets_[key]}});
  }

  static std::string Body(const std::string& prompt, const std::string& more = "") {
    return absl::StrCat(R"({"prompt": ")", prompt, R"(", "size": "64x64", "num_inference_steps": 6)", more, "}");
  }

  // Submits a job and returns its id.
  std::string Submit(const std::string& prompt) {
    const TestResponse response = Call("me", "POST", "/v1/jobs", Body(prompt));
    EXPECT_EQ(response.status, 202) << response.body;
    return response.status == 202 ? response.Header("location").substr(9) : "";
  }

  server::JobState StateOf(const std::string& job) { return service_->Get({.tenant = "me"}, job)->state; }

  Figures Scrape() {
    const TestResponse response = HttpTestClient(edges_->admin_port()).Call("GET", "/metrics");
    EXPECT_EQ(response.status, 200);
    Figures figures;
    for (const absl::string_view line : absl::StrSplit(response.body, '\n', absl::SkipEmpty())) {
      if (absl::StartsWith(line, "#")) continue;
      const size_t blank = line.rfind(' ');
      EXPECT_TRUE(absl::SimpleAtod(line.substr(blank + 1), &figures[std::string(line.substr(0, blank))])) << line;
    }
    return figures;
  }

  // Sums the values of one metric family by the value of `label`. Series without that label are left out.
  static Figures Family(const Figures& figures, const std::string& name, const std::string& label) {
    Figures family;
    for (const auto& [figure, count] : figures) {
      if (!absl::StartsWith(figure, name + "{")) continue;
      const std::string begin = absl::StrCat(label, "=\"");
      const size_t at = figure.find(begin);
      if (at == std::string::npos) continue;
      const size_t from = at + begin.size();
      family[figure.substr(from, figure.find('"', from) - from)] += count;
    }
    return family;
  }

  // Returns the predicted seconds of `steps` steps and the decoder, on one rank without measured steps.
  double Seconds(const std::string& job, int steps) {
    const control::JobParameters parameters = service_->Get({.tenant = "me"}, job)->request->parameters;
    const control::ModelCost cost = service_->ListModels()[0].description->cost;
    const control::ImageWork work = control::WorkOf(cost, parameters);
    return (steps * control::StepFlops(cost, work) + control::DecodeFlops(cost, work)) /
           server::SchedulerOptions().initial_flops_per_second;
  }

  FaultyDisk disk_;
  TestFolder folder_;
  std::unique_ptr<server::DurableImageService> service_;
  std::unique_ptr<server::ServerEdges> edges_;
  std::map<std::string, std::string> secrets_;
};

TEST_F(MetricsTest, AreExactAfterARun) {
  // One image is held at its first step while two of another size wait.
  const std::string plum = Submit("gated plum");
  WaitUntil("running", [&] { return StateOf(plum) == server::JobState::kRunning; });
  EXPECT_EQ(Call("few", "POST", "/v1/jobs", Body("kiwi", R"(, "n": 2)")).status, 429);
  const std::string larger = R"({"prompt": "fig", "size": "128x128", "num_inference_steps": 6})";
  const absl::Duration before = base::SteadyNow();
  const std::string fig = Call("me", "POST", "/v1/jobs", larger).Header("location").substr(9);
  const absl::Duration after = base::SteadyNow();
  const std::string quince = Call("me", "POST", "/v1/jobs", larger).Header("location").substr(9);
  EXPECT_EQ(Call("me", "POST", "/v1/jobs", Body("kiwi")).status, 429);
  EXPECT_EQ(Call("slow", "POST", "/v1/jobs", Body("kiwi")).status, 429) << "the queue is full";
  EXPECT_EQ(Call("slow", "POST", "/v1/jobs", Body("kiwi")).status, 429) << "its rate is used up";

  // Two steps of the first image are in flight.
  const double work = Seconds(plum, 4) + Seconds(fig, 6) + Seconds(quince, 6);
  ASSERT_GT(work, 0);
  WaitUntil("two steps in flight",
            [&] { return std::abs(Scrape()[R"(tessera_queued_device_seconds{model="tiny"})"] - work) < 1e-6 * work; });
  const absl::Duration scraping = base::SteadyNow();
  Figures held = Scrape();
  EXPECT_GE(held[R"(tessera_oldest_wait_seconds{model="tiny"})"], absl::ToDoubleSeconds(scraping - after));
  EXPECT_LE(held[R"(tessera_oldest_wait_seconds{model="tiny"})"], absl::ToDoubleSeconds(base::SteadyNow() - before));
  EXPECT_EQ(held[R"(tessera_queued_jobs{model="tiny"})"], 2);
  EXPECT_EQ(held[R"(tessera_running_jobs{model="tiny"})"], 1);
  EXPECT_EQ(held["tessera_draining"], 0);

  EXPECT_EQ(Call("me", "DELETE", "/v1/jobs/" + quince).status, 200);
  EXPECT_EQ(Call("me", "DELETE", "/v1/jobs/" + plum).status, 200);
  EXPECT_EQ(Call("me", "DELETE", "/v1/jobs/" + plum).status, 200) << "once more, while the worker still has it";
  folder_.Write("gate", "");
  WaitUntil("the one that waited", [&] { return StateOf(fig) == server::JobState::kDone; });
  EXPECT_EQ(Call("me", "POST", "/v1/images/generations", Body("apple")).status, 200);
  EXPECT_EQ(Call("me", "POST", "/v1/images/generations", Body("apple")).status, 200);
  EXPECT_EQ(Call("me", "POST", "/v1/images/generations", Body("pear")).status, 400);
  const std::string lemon = Submit("lemon");
  WaitUntil("quarantined", [&] { return StateOf(lemon) == server::JobState::kFailed; });
  WaitUntil("counted", [&] { return service_->Info().images_failed == 2; });
  WaitUntil("started again", [&] {
    const server::GroupInfo group = service_->Info().groups[0];
    return group.state == server::GroupState::kReady && group.restarts == 3;
  });

  disk_.Plan(DiskFault::kFull, 0);
  EXPECT_EQ(Call("me", "POST", "/v1/jobs", Body("kiwi")).status, 503);
  disk_.Plan(DiskFault::kNone, 0);
  EXPECT_EQ(Call("me", "POST", "/v1/jobs", "{}").status, 400);
  EXPECT_EQ(Call("nobody", "GET", "/v1/models").status, 401);
  HttpTestClient garbage(edges_->http_port());
  garbage.Send("GARBAGE\r\n\r\n");
  EXPECT_EQ(garbage.ReadResponse().status, 400);
  service_->Drain(absl::ZeroDuration());
  EXPECT_EQ(Call("me", "POST", "/v1/jobs", Body("kiwi")).status, 503);

  // Calls are counted after their answers have been sent.
  WaitUntil("counted", [&] {
    double calls = 0;
    for (const auto& [protocol, count] : Family(Scrape(), "tessera_request_seconds_count", "protocol")) {
      if (protocol == "http") calls = count;
    }
    return calls == 19;
  });
  Figures all = Scrape();
  EXPECT_THAT(Family(all, "tessera_stage_seconds_count", "stage"),
              ElementsAre(Pair("decode", 3),                   // fig, apple twice
                          Pair("encode", 4),                   // the same and plum
                          Pair("image", 3), Pair("queue", 8),  // the same, pear, lemon three times
                          Pair("step", 20)));                  // six each, two of plum
  EXPECT_THAT(Family(all, "tessera_images_total", "outcome"),
              ElementsAre(Pair("cancelled", 2), Pair("done", 3), Pair("failed", 1), Pair("quarantined", 1)));
  EXPECT_EQ(all["tessera_prompt_cache_hits_total"], 1);
  EXPECT_THAT(Family(all, "tessera_rejected_jobs_total", "reason"),
              ElementsAre(Pair("draining", 1), Pair("key_queue_full", 1), Pair("no_group", 0), Pair("queue_full", 2),
                          Pair("rate_limit_exceeded", 1), Pair("storage_full", 1), Pair("storage_unavailable", 0)));
  EXPECT_THAT(Family(all, "tessera_group_state", "state"),
              ElementsAre(Pair("certifying", 0), Pair("loading", 0), Pair("ready", 1), Pair("refused", 0),
                          Pair("restarting", 0), Pair("starting", 0), Pair("stopped", 0)));
  EXPECT_THAT(Family(all, "tessera_group_ready", "group"), ElementsAre(Pair("tiny-0", 1)));
  EXPECT_THAT(Family(all, "tessera_group_loaded_ratio", "group"), ElementsAre(Pair("tiny-0", 1)));
  EXPECT_THAT(Family(all, "tessera_group_restarts_total", "group"), ElementsAre(Pair("tiny-0", 3)));
  EXPECT_EQ(all[R"(tessera_queued_jobs{model="tiny"})"], 0);
  EXPECT_EQ(all[R"(tessera_running_jobs{model="tiny"})"], 0);
  EXPECT_EQ(all[R"(tessera_oldest_wait_seconds{model="tiny"})"], 0);
  EXPECT_THAT(all[R"(tessera_queued_device_seconds{model="tiny"})"], DoubleNear(0, 1e-12 * work));
  EXPECT_EQ(all["tessera_draining"], 1);

  Figures calls = Family(all, "tessera_request_seconds_count", "route");
  calls.erase("/metrics");  // depends on how often it was read
  EXPECT_THAT(calls, ElementsAre(Pair("/v1/images/generations", 3), Pair("/v1/jobs", 11), Pair("/v1/jobs/{id}", 3),
                                 Pair("/v1/models", 1), Pair("none", 1)));
  const auto answered = [&](const std::string& labels) {
    return all[absl::StrCat("tessera_requests_total{", labels, "}")];
  };
  EXPECT_EQ(answered(R"(method="POST",protocol="http",route="/v1/jobs",status="202")"), 4);
  EXPECT_EQ(answered(R"(method="POST",protocol="http",route="/v1/jobs",status="400")"), 1);
  EXPECT_EQ(answered(R"(method="POST",protocol="http",route="/v1/jobs",status="429")"), 4);
  EXPECT_EQ(answered(R"(method="POST",protocol="http",route="/v1/jobs",status="503")"), 2);
  EXPECT_EQ(answered(R"(method="none",protocol="http",route="none",status="400")"), 1);
}

}  // namespace
}  // namespace tessera
