// Tests `tessera doctor` with correct and with faulty files and workers.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/serve/deployment_checks.h"
#include "client/cli/serve/served_group.h"
#include "server/jobs/schema.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/front/command_line_fixture.h"
#include "tests/support/made_up_host.h"
#include "tests/support/test_folder.h"
#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kUnfit = 8;
constexpr char kAnyPorts[] = "listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}\n";

class DoctorTest : public CommandLineTest {
 protected:
  std::string Group(const std::string& more = "") const {
    return absl::StrCat("groups: [{model: ", ModelsFolder(), "/tiny", more, "}]\n");
  }

  Result Doctor(const std::string& config, const std::string& script = "", std::vector<std::string> more = {}) {
    Write("tessera.yaml", config);
    std::vector<std::string> arguments = {"doctor", "--config", "tessera.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments, script);
  }

  void ExpectFailure(const std::string& config, const std::string& what, const std::string& found,
                     const std::string& script = "") {
    const Result result = Doctor(config, script);
    EXPECT_EQ(result.exit_code, kUnfit) << config << result.output << result.errors;
    EXPECT_THAT(result.output, ContainsRegex(absl::StrCat("FAILED +", what, ".*", found, ".* → "))) << config;
  }
};

server::ServedGroupOptions Served(const std::string& name, const std::string& folder,
                                  std::vector<std::string> aliases = {}, control::Dtype dtype = control::Dtype::kFp32) {
  server::ServedGroupOptions group = {.name = name, .aliases = std::move(aliases)};
  group.load.model = folder;
  group.load.dtype = dtype;
  return group;
}

TEST(NamesOfGroupsTest, ANameMeansOneFolderAndOneDtype) {
  const auto error = [](const std::vector<server::ServedGroupOptions>& groups) {
    const absl::Status status = client::CheckNamesOf(groups);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({Served("m", "/a/m"), Served("m", "/b/m")}),
              AllOf(HasSubstr("\"m\""), HasSubstr("\"/a/m\""), HasSubstr("\"/b/m\"")));
  EXPECT_THAT(error({Served("m", "/a/m"), Served("m", "/a/m", {}, control::Dtype::kBf16)}),
              AllOf(HasSubstr("in fp32"), HasSubstr("in bf16")));
  EXPECT_THAT(error({Served("m", "/a/m"), Served("n", "/b/n", {"m"})}), HasSubstr("\"/b/n\""));
  EXPECT_THAT(error({Served("m", "/a/m", {"x"}), Served("n", "/b/n", {"x"})}), HasSubstr("\"x\""));
}

TEST(NamesOfGroupsTest, GroupsOfOneFolderAreReplicasHoweverItIsWritten) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "a/m");
  std::filesystem::create_directory_symlink(folder / "a/m", folder / "link");
  EXPECT_EQ(client::CheckNamesOf({Served("m", folder / "a/m", {"x"}), Served("m", folder / "a/../a/m/", {"x"}),
                                  Served("m", folder / "link"), Served("n", folder / "b")}),
            absl::OkStatus());
}

TEST_F(DoctorTest, FindsANameOfTwoModels) {
  const TestFolder other;
  std::filesystem::copy(ModelsFolder() + "/tiny", other / "tiny", std::filesystem::copy_options::recursive);
  ExpectFailure(
      absl::StrCat(kAnyPorts, "groups: [{model: ", ModelsFolder(), "/tiny}, {model: ", other.path(), "/tiny}]\n"),
      "names of models", other / "tiny");
}

TEST_F(DoctorTest, FindsNothingWrongWhereAServerCanStart) {
  const Result result = Doctor(kAnyPorts + Group(", layout: \"cfg=2\""));
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, Not(HasSubstr("FAILED")));
  for (const char* what : {"configuration", "clock", "data folder", "job store", "privacy", "listener http",
                           "listener grpc", "listener admin", "keys file", "TLS", "open files", "processes",
                           "worker program", "model tiny", "layout of tiny", "threads", "memory"}) {
    EXPECT_THAT(result.output, ContainsRegex(absl::StrCat("(ok|warning) +", what))) << what;
  }
  EXPECT_FALSE(std::filesystem::exists(WorkFolder() + "/tessera-data")) << "it looks and makes nothing";
}

TEST_F(DoctorTest, ReportsTheSameAsJson) {
  const Result result = Doctor(kAnyPorts + Group(", layout: \"tensor=3\""), "", {"--json"});
  EXPECT_EQ(result.exit_code, kUnfit);
  bool failed = false;
  for (const boost::json::object& event : Events(result.output)) {
    EXPECT_EQ(event.at("event"), "finding");
    if (event.at("health") != "failed") continue;
    failed = true;
    EXPECT_EQ(event.at("what"), "layout of tiny");
    EXPECT_FALSE(event.at("advice").as_string().empty());
  }
  EXPECT_TRUE(failed);
}

TEST_F(DoctorTest, FindsWhatIsWrongInTheConfiguration) {
  ExpectFailure("grups: []\n", "configuration", "grups");
  const Result absent = Run({"doctor", "--config", "absent.yaml"});
  EXPECT_EQ(absent.exit_code, kUnfit);
  EXPECT_THAT(absent.output, ContainsRegex("FAILED +configuration"));
}

TEST_F(DoctorTest, FindsModelsLayoutsAndWorkersThatCannotServe) {
  ExpectFailure(absl::StrCat(kAnyPorts, "groups: [{model: gone}]\n"), "model gone", "no folder of that name");
  ExpectFailure(kAnyPorts + Group(), "model tiny", "describe fails as its script says", "describe=error");
  ExpectFailure(kAnyPorts + Group(), "model tiny", "ended with exit code 3", "exit=3");
  ExpectFailure(kAnyPorts + Group(", layout: \"tensor=3\""), "layout of tiny", "heads");
  ExpectFailure(kAnyPorts + Group(", layout: \"cfg=2\""), "layout of tiny", "rank 1 of 2", "rank1:exit=5");
  ExpectFailure(absl::StrCat("certify: require\n", kAnyPorts, Group(", layout: \"cfg=2\"")), "layout of tiny",
                "without a certificate");
}

TEST_F(DoctorTest, FindsAWorkerProgramOfAnotherBuild) {
  ExpectFailure(kAnyPorts + Group(), "worker program", "another build: its version is 'tessera 0.0.0, control protocol",
                "version=0.0.0");
  // Programs that do not report a version: one prints something else, one prints nothing.
  for (const auto& [program, said] : {std::pair("/bin/echo", "--socket"), std::pair("/bin/false", "''")}) {
    setenv("TESSERA_WORKER", program, 1);
    const client::Finding finding = client::CheckWorker();
    EXPECT_EQ(finding.health, client::Health::kFailed) << program;
    EXPECT_THAT(finding.found, AllOf(HasSubstr(program), HasSubstr(said)));
  }
  setenv("TESSERA_WORKER", (WorkFolder() + "/absent").c_str(), 1);
  EXPECT_THAT(client::CheckWorker().found, HasSubstr("cannot start the worker"));
  setenv("TESSERA_WORKER", FAKE_WORKER, 1);
  EXPECT_EQ(client::CheckWorker().health, client::Health::kOk);
  unsetenv("TESSERA_WORKER");
}

TEST_F(DoctorTest, FindsDataThatCannotBeUsed) {
  Write("file", "");
  ExpectFailure(absl::StrCat("data_folder: file\n", kAnyPorts, Group()), "data folder", "cannot write");
  std::filesystem::create_directory(WorkFolder() + "/data");
  Write("data/jobs.sqlite", std::string(8192, 'x'));
  ExpectFailure(absl::StrCat("data_folder: data\n", kAnyPorts, Group()), "job store", "");
}

TEST_F(DoctorTest, FindsImagesWhoseDatabaseIsGone) {
  std::filesystem::create_directories(WorkFolder() + "/data/images/01");
  Write("data/images/01/1-1", "a picture");
  ExpectFailure(absl::StrCat("data_folder: data\n", kAnyPorts, Group()), "job store", "is missing or empty");
}

TEST_F(DoctorTest, FindsPromptsAndPicturesThatOthersCanRead) {
  const auto set_mode = [&](const std::string& name, int mode) {
    std::filesystem::permissions(WorkFolder() + "/" + name, static_cast<std::filesystem::perms>(mode));
  };
  std::filesystem::create_directories(WorkFolder() + "/data/images");
  set_mode("data", 0755);
  set_mode("data/images", 0755);
  const std::string config = absl::StrCat("data_folder: data\n", kAnyPorts, Group());
  const Result open = Doctor(config);
  EXPECT_EQ(open.exit_code, 0) << "a warning";
  EXPECT_THAT(open.output, ContainsRegex("warning +privacy +every user of this machine can read prompts and pictures "
                                         "in 'data' → chmod -R go-rwx 'data'"));
  set_mode("data", 0700);
  EXPECT_THAT(Doctor(config).output, ContainsRegex("ok +privacy"));
}

TEST_F(DoctorTest, FindsAPortThatIsTaken) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ExpectFailure(absl::StrCat("listen: {http: {port: ", ntohs(address.sin_port), "}, grpc: off, admin: off}\n", Group()),
                "listener http", "Address already in use");
  close(taken);
}

TEST_F(DoctorTest, FindsKeysAndCertificatesThatCannotBeReadOrAreReadByOthers) {
  ExpectFailure(absl::StrCat("keys_file: absent\n", kAnyPorts, Group()), "keys file", "");
  ExpectFailure(absl::StrCat("tls: {certificate_chain: a.pem, private_key: b.pem}\n", kAnyPorts, Group()), "TLS",
                "cannot be read");
  Write("keys.txt", "");
  const Result result = Doctor(absl::StrCat("keys_file: keys.txt\n", kAnyPorts, Group()));
  EXPECT_THAT(result.output, ContainsRegex("(warning|FAILED) +keys file"));
}

TEST_F(DoctorTest, LeavesAServerThatRunsAlone) {
  const std::string config = absl::StrCat("data_folder: data\n", kAnyPorts, Group());
  Write("tessera.yaml", config);
  const auto server = Start({"serve", "--config", "tessera.yaml"});
  ASSERT_TRUE(server->WaitForOutput("listening"));
  const Result result = Doctor(config);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("in use by a running server"), HasSubstr("0 queued")));
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0);
}

TEST_F(DoctorTest, JudgesACertificateByItsDatesAndItsKeyByWhoCanReadIt) {
  const server::TlsConfig tls = {.certificate_chain = WorkFolder() + "/chain.pem",
                                 .private_key = WorkFolder() + "/key.pem"};
  WriteSelfSigned("localhost", {.certificate_chain = tls.certificate_chain, .private_key = tls.private_key});
  const absl::Time now = absl::Now();
  const auto health = [&](absl::Time time) { return client::CheckTlsFiles(tls, time).at(0).health; };
  EXPECT_EQ(health(now), client::Health::kWarning) << "it ends soon";
  EXPECT_EQ(health(now - absl::Hours(2)), client::Health::kFailed);
  EXPECT_EQ(health(now + absl::Hours(2)), client::Health::kFailed);
  namespace fs = std::filesystem;
  fs::permissions(tls.private_key, fs::perms::owner_read);
  EXPECT_EQ(client::CheckTlsFiles(tls, now).size(), 1u);
  fs::permissions(tls.private_key, fs::perms::owner_read | fs::perms::others_read);
  EXPECT_THAT(client::CheckTlsFiles(tls, now).at(1).found, HasSubstr("can read the private key"));
  WriteSelfSigned("other", {.certificate_chain = tls.certificate_chain, .private_key = WorkFolder() + "/other.pem"});
  EXPECT_THAT(client::CheckTlsFiles(tls, now).at(0).found,
              HasSubstr("does not belong to the certificate: key values mismatch"));
}

TEST_F(DoctorTest, FindsAJobStoreWithATimeInTheFuture) {
  std::filesystem::create_directory(WorkFolder() + "/data");
  bool in_use = false;
  {
    const auto database = server::SqliteDatabase::Open({.path = WorkFolder() + "/data/jobs.sqlite"});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_EQ(server::MigrateSchema(**database, server::SqliteJobStore::kSchemaVersion), absl::OkStatus());
    ASSERT_EQ((*database)->Execute("INSERT INTO tasks(job, state, started) VALUES(1, 1, 1)"), absl::OkStatus());
    EXPECT_EQ(client::CheckJobStore(WorkFolder() + "/data", in_use).health, client::Health::kOk);
    ASSERT_EQ((*database)->Execute("INSERT INTO tasks(job, state, started) VALUES(2, 1, 4102444800000000)"),
              absl::OkStatus());
  }
  const client::Finding future = client::CheckJobStore(WorkFolder() + "/data", in_use);
  EXPECT_EQ(future.health, client::Health::kWarning);
  EXPECT_THAT(future.found, AllOf(HasSubstr("2 running"), HasSubstr("2100-01-01 00:00:00 UTC")));
  EXPECT_THAT(future.advice, HasSubstr("set the clock"));
}

TEST_F(DoctorTest, ComparesWhatIsAskedForWithTheMachine) {
  EXPECT_EQ(client::CheckOpenFiles(1, 60).health, client::Health::kOk);
  EXPECT_EQ(client::CheckOpenFiles(int64_t{1} << 40, 60).health, client::Health::kWarning);
  EXPECT_EQ(client::CheckProcesses(61, {}).health, client::Health::kOk);
  const client::Finding few = client::CheckProcesses(61, {{.name = "pids.max", .most = 100, .used = 40}});
  EXPECT_EQ(few.health, client::Health::kFailed);
  EXPECT_THAT(few.found, HasSubstr("pids.max is 100, of which 40 are in use, and 61 more are needed"));
  EXPECT_EQ(client::CheckThreads(1).health, client::Health::kOk);
  EXPECT_EQ(client::CheckThreads(1 << 20).health, client::Health::kWarning);
  EXPECT_EQ(client::CheckMemory(0).health, client::Health::kOk);
  EXPECT_EQ(client::CheckMemory(int64_t{1} << 60).health, client::Health::kWarning);
  EXPECT_EQ(client::CheckClock(absl::UnixEpoch()).health, client::Health::kFailed);
  EXPECT_EQ(client::CheckCuda(WorkFolder() + "/tessera-worker").health, client::Health::kFailed);
}

TEST_F(DoctorTest, SaysWhatKeepsAnAdapterFromMemoryAndHowToRaiseTheLimit) {
  const client::Finding limited = client::CheckLockedMemory({.limit = 8 << 20});
  EXPECT_EQ(limited.health, client::Health::kWarning);
  EXPECT_THAT(limited.found, AllOf(HasSubstr("8.0 MiB"), HasSubstr("IPC_LOCK is not effective")));
  EXPECT_THAT(limited.advice, AllOf(HasSubstr("LimitMEMLOCK=infinity for containerd"), HasSubstr("memlock=-1")));
  EXPECT_EQ(client::CheckLockedMemory({.limit = 0}).health, client::Health::kWarning);
  EXPECT_EQ(client::CheckLockedMemory({}).health, client::Health::kOk);
  const client::Finding exempt = client::CheckLockedMemory({.limit = 64 << 10, .exempt = true});
  EXPECT_EQ(exempt.health, client::Health::kOk);
  EXPECT_THAT(exempt.found, HasSubstr("IPC_LOCK exempts"));
}

TEST_F(DoctorTest, ReadsTheLimitOfLockedMemoryOfItsOwnProcess) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit lower = before;
  lower.rlim_cur = 32 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lower), 0);
  EXPECT_EQ(client::ReadLockedMemory().limit, 32 << 10);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  const std::optional<int64_t> limit = client::ReadLockedMemory().limit;
  EXPECT_EQ(limit.has_value(), before.rlim_cur != RLIM_INFINITY);
}

TEST_F(DoctorTest, NamesADriverThatIsTooOldAndTheCure) {
  const auto check = [](const std::string& version, const std::string& card, const std::string& compat) {
    return client::CheckDriver({.version = version, .cards = {card}}, compat);
  };
  EXPECT_EQ(check("580.65.06", "NVIDIA GeForce RTX 4090", "").health, client::Health::kOk);
  EXPECT_EQ(check("", "", "").health, client::Health::kOk);
  const client::Finding compat = check("570.124.06", "NVIDIA H100 80GB HBM3", "/opt/tessera/lib/cuda-compat");
  EXPECT_EQ(compat.health, client::Health::kOk);
  EXPECT_THAT(compat.found, AllOf(HasSubstr("570.124.06"), HasSubstr("cuda-compat 13.0")));
  const client::Finding without = check("570.124.06", "NVIDIA H100 80GB HBM3", "");
  EXPECT_EQ(without.health, client::Health::kFailed);
  EXPECT_THAT(without.found, HasSubstr("570.124.06, and CUDA 13.0 needs 580 or newer"));
  EXPECT_THAT(without.advice, AllOf(HasSubstr("driver 580 or newer"), HasSubstr("CUDA image")));
  const client::Finding consumer = check("570.124.06", "NVIDIA GeForce RTX 4090", "/opt/tessera/lib/cuda-compat");
  EXPECT_EQ(consumer.health, client::Health::kFailed);
  EXPECT_THAT(consumer.advice, HasSubstr("data-centre cards alone"));
}

// Returns one line per finding.
std::vector<std::string> TopologyOf(const MadeUpHost& host, MadeUpGpuDriver& driver) {
  std::vector<std::string> lines;
  for (const client::Finding& finding : client::CheckTopology(control::ReadHostTopology(driver, host.root()))) {
    lines.push_back(
        absl::StrCat(finding.health == client::Health::kWarning ? "warning: " : "", finding.what, ": ", finding.found));
  }
  return lines;
}

TEST_F(DoctorTest, ReportsWhereGpusAreAndWhatLiesBetweenThem) {
  MadeUpHost host;
  MadeUpGpuDriver driver;
  EXPECT_THAT(TopologyOf(host, driver), IsEmpty());
  MakePcieHost(host, driver);
  driver.nvlinks = {{"0000:13:00.0", "0000:14:00.0"}, {"0000:21:00.0", "0000:81:00.0"}};
  driver.gpus.push_back({.pci_address = "0000:90:00.0"});
  EXPECT_THAT(
      TopologyOf(host, driver),
      ElementsAre("GPU cuda:0: 0000:13:00.0, NUMA node 0", "GPU cuda:1: 0000:14:00.0, NUMA node 0",
                  "GPU cuda:2: 0000:21:00.0, NUMA node 0", "GPU cuda:3: 0000:81:00.0, NUMA node 1",
                  "GPU cuda:4: 0000:90:00.0, NUMA node unknown",
                  "GPU links: NVLink between cuda:0 and cuda:1, cuda:2 and cuda:3; PCIe within a socket between "
                  "cuda:0 and cuda:2, cuda:1 and cuda:2; PCIe across sockets between cuda:0 and cuda:3, cuda:1 "
                  "and cuda:3; PCIe between all others",
                  "warning: topology: the kernel does not show where 0000:90:00.0 is"));
}

TEST_F(DoctorTest, WarnsWhereNoInfinibandPortIsActive) {
  MadeUpHost host;
  MadeUpGpuDriver driver;
  host.AddInfiniband("mlx5_0", "1: DOWN", "InfiniBand", "0");
  host.AddInfiniband("mlx5_1", "2: INIT", "Ethernet", "-1");
  EXPECT_THAT(TopologyOf(host, driver),
              ElementsAre("warning: InfiniBand: mlx5_0 port 1 (InfiniBand, 400 Gb/sec (4X NDR)), NUMA node 0, not "
                          "active; mlx5_1 port 1 (Ethernet, 400 Gb/sec (4X NDR)), NUMA node unknown, not active"));
  host.AddInfiniband("mlx5_0", "4: ACTIVE", "InfiniBand", "0");
  EXPECT_THAT(TopologyOf(host, driver), ElementsAre(testing::StartsWith("InfiniBand: ")));
}

}  // namespace
}  // namespace tessera
