// Tests what happens to the workers when a server is killed and the next one starts on the same data folder.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/time/steady_time.h"
#include "server/workers/worker_identity.h"
#include "tests/front/command_line_fixture.h"
#include "tests/support/http_test_client.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

constexpr char kRequest[] = R"({"prompt": "apple", "model": "tiny", "size": "32x32", "seed": 5})";
constexpr char kLongJob[] =
    R"({"prompt": "apple", "model": "tiny", "size": "32x32", "seed": 5, "num_inference_steps": 1000})";

class AdoptionTest : public CommandLineTest {
 protected:
  void SetUp() override { Configure("serial"); }

  void Configure(const std::string& layout) {
    Write("tessera.yaml", absl::StrCat("groups:\n  - {model: ", ModelsFolder(), "/tiny, layout: \"", layout,
                                       "\"}\nlisten:\n  http: {address: 127.0.0.1, port: 0}\n  grpc: off\n"
                                       "  admin: off\ncertify: off\ndata_folder: data\n"));
  }

  void StartServer(const std::string& script = "", const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"serve", "--config", "tessera.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    server_ = Start(arguments, absl::StrCat("loads=", WorkFolder(), "/loads ", script));
    ASSERT_TRUE(server_->WaitForOutput("}\n")) << server_->errors();
    const auto listening = Events(server_->output());
    ASSERT_EQ(listening.size(), 1u);
    port_ = listening[0].at("http").to_number<uint16_t>();
  }

  void KillServer() {
    server_->Signal(SIGKILL);
    EXPECT_EQ(server_->Wait(), 1000 + SIGKILL);
  }

  std::string StopServer() {
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait(), 0);
    return server_->errors();
  }

  // Generates an image and returns it in base64.
  std::string Generate() {
    const TestResponse response =
        HttpTestClient(port_, absl::Seconds(60)).Call("POST", "/v1/images/generations", kRequest);
    EXPECT_EQ(response.status, 200) << response.body;
    if (response.status != 200) return "";
    return std::string(boost::json::parse(response.body).at("data").at(0).at("b64_json").as_string());
  }

  size_t Loads() const {
    const std::string text = Read("loads");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  // Kills the server, starts the next one, and waits until it serves; again and again until this took less than the
  // five seconds that workers have to be adopted. `before` is called before each kill, and `between` after it.
  void Restart(const std::function<void()>& before, const std::function<void()>& between = nullptr) {
    absl::Duration killed;
    do {
      before();
      killed = base::SteadyNow();
      KillServer();
      if (between) between();
      StartServer();
      Generate();
    } while (!HasFailure() && base::SteadyNow() - killed > absl::Seconds(5));
  }

  std::string Record() const { return Read("data/workers/tiny-0.json"); }
  void WriteRecord(const std::string& text) { Write("data/workers/tiny-0.json", text); }

  void ExpectGone(const std::vector<pid_t>& workers) {
    for (const pid_t worker : workers) EXPECT_TRUE(WaitUntilGone(worker));
  }

  std::unique_ptr<ChildProcess> server_;
  uint16_t port_ = 0;
};

TEST_F(AdoptionTest, TheNextServerAdoptsTheWorkersWithTheirModel) {
  StartServer();
  const std::string before = Generate();
  std::vector<pid_t> workers;
  size_t loads = 0;
  Restart([&] {
    workers = Workers();
    loads = Loads();
  });
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(Generate(), before);
  EXPECT_EQ(Workers(), workers);
  EXPECT_EQ(Loads(), loads);
  // Adopted workers end with their server like its own workers.
  EXPECT_THAT(StopServer(), HasSubstr("adopted"));
  EXPECT_EQ(Workers(), std::vector<pid_t>());
  EXPECT_FALSE(std::filesystem::exists(WorkFolder() + "/data/workers/tiny-0.json"));
}

TEST_F(AdoptionTest, WorkersAreAdoptedAgainAndAgainInGroupsOfSeveral) {
  Configure("cfg=2");
  StartServer();
  const std::string before = Generate();
  for (int crash = 0; crash < 3; ++crash) {
    std::vector<pid_t> workers;
    size_t loads = 0;
    Restart([&] {
      workers = Workers();
      loads = Loads();
    });
    ASSERT_EQ(workers.size(), 2u);
    EXPECT_EQ(Generate(), before);
    EXPECT_THAT(Workers(), UnorderedElementsAreArray(workers));
    EXPECT_EQ(Loads(), loads);
  }
  StopServer();
}

TEST_F(AdoptionTest, AJobInTheMiddleIsMadeAgainAndItsImageIsTheSame) {
  Configure("cfg=2");
  const std::string permits = absl::StrCat(WorkFolder(), "/permits");
  Write("permits", "...");
  StartServer(absl::StrCat("permits=", permits));
  const auto submit = [&] {
    const TestResponse accepted = HttpTestClient(port_).Call("POST", "/v1/jobs", kLongJob);
    EXPECT_EQ(accepted.status, 202) << accepted.body;
    return std::string(boost::json::parse(accepted.body).at("id").as_string());
  };
  const auto value_of = [&](const std::string& job) {
    const TestResponse about = HttpTestClient(port_).Call("GET", "/v1/jobs/" + job);
    EXPECT_EQ(about.status, 200) << about.body;
    return boost::json::parse(about.body);
  };
  const auto image_of = [&](const std::string& job) {
    HttpTestClient events(port_, absl::Seconds(60));
    events.Send(absl::StrCat("GET /v1/jobs/", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(events.ReadUntil("event: done"), HasSubstr("event: done"));
    const std::string image(value_of(job).at("images").at(0).at("id").as_string());
    return HttpTestClient(port_).Call("GET", "/v1/images/" + image).body;
  };
  const std::string job = submit();
  WaitUntil("the job is in the middle", [&] { return value_of(job).at("steps_done").as_int64() == 3; });
  KillServer();
  std::filesystem::resize_file(permits, 1'000'000);
  StartServer();
  const std::string image = image_of(job);
  EXPECT_THAT(image, HasSubstr("PNG"));
  EXPECT_EQ(image, image_of(submit())) << "an undisturbed job has another image";
  StopServer();
}

TEST_F(AdoptionTest, WorkersEndByThemselvesWhereNoServerComes) {
  StartServer();
  Generate();
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 1u);
  const absl::Duration killed = base::SteadyNow();
  KillServer();
  ExpectGone(workers);
  EXPECT_GE(base::SteadyNow() - killed, absl::Seconds(9)) << "it does not outlive the server, so the rest says nothing";
}

TEST_F(AdoptionTest, AWorkerThatHasNotListenedYetEndsWithItsServer) {
  StartServer("mute-if-adoptable");
  const pid_t worker = WorkerPid();
  KillServer();
  EXPECT_TRUE(WaitUntilGone(worker));
}

TEST_F(AdoptionTest, ABusyWorkerEndsByItselfToo) {
  Write("permits", ".");
  StartServer(absl::StrCat("permits=", WorkFolder(), "/permits"));
  const std::string job = HttpTestClient(port_).Call("POST", "/v1/jobs", kLongJob).Header("location");
  WaitUntil("the job is in its second step", [&] {
    return boost::json::parse(HttpTestClient(port_).Call("GET", job).body).at("steps_done").as_int64() == 1;
  });
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 1u);
  KillServer();
  ExpectGone(workers);
}

TEST_F(AdoptionTest, WorkersOfAnotherModelAreKilledAndTheModelIsLoaded) {
  StartServer();
  Generate();
  std::vector<pid_t> workers;
  size_t loads = 0;
  Restart(
      [&] {
        workers = Workers();
        loads = Loads();
      },
      [&] {
        WriteRecord(absl::StrReplaceAll(Record(), {{"0123456789abcdef", "0123456789abcdee"}}));
      });
  EXPECT_THAT(Workers(), Not(UnorderedElementsAreArray(workers)));
  EXPECT_EQ(Workers().size(), 1u);
  EXPECT_EQ(Loads(), loads + 1);
  EXPECT_THAT(StopServer(), HasSubstr("not adopted: they were started with other options"));
}

TEST_F(AdoptionTest, AGroupThatHasLostARankIsKilledAndStartedAfresh) {
  Configure("cfg=2");
  StartServer();
  Generate();
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2u);
  KillServer();
  kill(workers[1], SIGKILL);
  ASSERT_TRUE(WaitUntilGone(workers[1]));
  StartServer();
  Generate();
  EXPECT_EQ(Loads(), 4u);
  EXPECT_EQ(Workers().size(), 2u);
  EXPECT_THAT(Workers(), Not(::testing::Contains(workers[0])));
  StopServer();
}

TEST_F(AdoptionTest, ARecordThatNamesAnotherProcessHarmsNoProcess) {
  StartServer();
  Generate();
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 1u);
  const absl::StatusOr<server::WorkerIdentity> worker = server::IdentityOf(workers[0], "");
  KillServer();
  // A process of this user, with its true start time, that is not a worker.
  ChildProcess bystander({.arguments = {"/bin/sleep", "600"}, .folder = "/", .environment = {}});
  const absl::StatusOr<server::WorkerIdentity> other = server::IdentityOf(bystander.pid(), "");
  ASSERT_TRUE(other.ok() && worker.ok());
  WriteRecord(absl::StrReplaceAll(
      Record(),
      {{absl::StrCat("\"pid\":", worker->pid), absl::StrCat("\"pid\":", other->pid)},
       {absl::StrCat("\"start_time\":", worker->start_time), absl::StrCat("\"start_time\":", other->start_time)}}));
  ASSERT_THAT(Record(), HasSubstr(absl::StrCat("\"pid\":", other->pid)));
  StartServer();
  Generate();
  EXPECT_EQ(Loads(), 2u);
  EXPECT_EQ(kill(bystander.pid(), 0), 0);
  EXPECT_TRUE(server::IdentityOf(bystander.pid(), "").ok());
  EXPECT_THAT(StopServer(), HasSubstr("is not that worker"));
  EXPECT_TRUE(server::OpenWorker(*other, "/nowhere").status().code() == absl::StatusCode::kNotFound);
  ExpectGone(workers);
}

TEST_F(AdoptionTest, WhatWorkersLeaveThatWereKilledWithTheirServerIsRemovedByTheNextOne) {
  // Simulates a server that was killed before its group was recorded.
  StartServer("load=hang", {"--no-supervisor"});
  const pid_t worker = WorkerPid();
  WaitUntil("a record", [&] { return std::filesystem::exists(WorkFolder() + "/data/workers/tiny-0.json"); });
  const std::string socket(boost::json::parse(Record()).at("workers").at(0).at("socket").as_string());
  WaitUntil("a socket", [&] { return std::filesystem::exists(socket); });
  StopProcess(server_->pid());  // otherwise it would clean up
  kill(worker, SIGKILL);
  EXPECT_TRUE(WaitUntilGone(worker));
  KillServer();
  std::filesystem::remove(WorkFolder() + "/data/workers/tiny-0.json");
  ASSERT_TRUE(std::filesystem::exists(socket));

  // More folders: one whose worker was killed before it could bind, one that contains a user's file, and one of another
  // data folder.
  const std::filesystem::path folder = std::filesystem::path(socket).parent_path();
  const std::string name = folder.filename(), owner = name.substr(0, name.rfind('-') + 1);
  const std::filesystem::path empty = folder.parent_path() / (owner + "0000000000000001");
  const std::filesystem::path used = folder.parent_path() / (owner + "0000000000000002");
  const std::filesystem::path others = folder.parent_path() / "tessera-0123abcd-0000000000000003";
  for (const std::filesystem::path& made : {empty, used, others}) std::filesystem::create_directory(made);
  std::ofstream(used / "notes") << "mine";

  StartServer();
  Generate();
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_FALSE(std::filesystem::exists(empty));
  EXPECT_TRUE(std::filesystem::exists(used / "notes"));
  EXPECT_TRUE(std::filesystem::exists(others));
  for (const std::filesystem::path& made : {used, others}) std::filesystem::remove_all(made);
  StopServer();
}

TEST_F(AdoptionTest, AWorkerIsKnownByItsStartTimeProgramAndSocket) {
  StartServer();
  Generate();
  const std::string record = Record();
  const boost::json::value entry = boost::json::parse(record).at("workers").at(0);
  const server::WorkerIdentity worker = {.pid = entry.at("pid").to_number<pid_t>(),
                                         .start_time = entry.at("start_time").to_number<uint64_t>(),
                                         .socket = std::string(entry.at("socket").as_string())};
  EXPECT_TRUE(server::IsWorker(worker, FAKE_WORKER));
  EXPECT_FALSE(server::IsWorker(worker, TESSERA_EXECUTABLE));
  server::WorkerIdentity other = worker;
  ++other.start_time;
  EXPECT_FALSE(server::IsWorker(other, FAKE_WORKER));
  other = worker;
  other.socket += 'x';
  EXPECT_FALSE(server::IsWorker(other, FAKE_WORKER));
  other = worker;
  other.pid = getpid();
  EXPECT_FALSE(server::IsWorker(other, FAKE_WORKER));
  for (const pid_t pid : {0, 1, -1, -worker.pid}) {
    other.pid = pid;
    EXPECT_FALSE(server::IsWorker(other, FAKE_WORKER)) << pid;
  }
  StopServer();
}

}  // namespace
}  // namespace tessera
