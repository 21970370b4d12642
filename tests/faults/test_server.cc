#include "tests/faults/test_server.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/time/steady_time.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr char kTrace[] = "trace.json";

}  // namespace

TestServer::TestServer(const TestServerOptions& options) : options_(options) {
  for (const char* name : {"sockets", "models/tiny", "models/other"}) fs::create_directories(folder_ / name);
  for (const char* name : {"tiny", "other"}) Write(absl::StrCat("models/", name, "/model_index.json"), "{}");
}

TestServer::~TestServer() {
  if (process_ != nullptr) Kill();
  // The workers would wait ten seconds for the next server.
  for (const pid_t pid : Workers()) {
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    EXPECT_TRUE(WaitUntilGone(pid)) << "a worker was left";
  }
  // A worker that was just starting when the server ended is not in the list of processes yet.
  WaitUntil("the workers' socket folders are removed", [this] { return SocketFolders() == 0; });
}

void TestServer::Write(const std::string& name, const std::string& text) const {
  std::ofstream(folder_ / name, std::ios::binary) << text;
}

size_t TestServer::SocketFolders() const {
  return std::distance(fs::directory_iterator(folder_ / "sockets"), fs::directory_iterator());
}

std::vector<pid_t> TestServer::Workers() const {
  const std::string worker = options_.worker.empty() ? REAL_WORKER : options_.worker;
  return ProcessesWith(worker, "XDG_RUNTIME_DIR", folder_ / "sockets");
}

std::unique_ptr<ChildProcess> TestServer::Launch() {
  std::string config =
      absl::StrCat("data_folder: ", options_.data_folder.empty() ? folder_ / "data" : options_.data_folder,
                   "\ncertify: off\nlisten:\n  http: {port: 0}\n", "  grpc: ", options_.grpc,
                   "\n  admin: ", options_.admin, "\n", options_.settings, "groups:\n");
  for (const std::string& group : options_.groups) absl::StrAppend(&config, "  - ", group, "\n");
  Write("tessera.yaml",
        absl::StrReplaceAll(config, {{"TINY", folder_ / "models/tiny"}, {"OTHER", folder_ / "models/other"}}));
  ChildOptions child = {
      .arguments = {TESSERA_EXECUTABLE, "serve", "-c", folder_ / "tessera.yaml", "--trace", folder_ / kTrace},
      .folder = folder_.path(),
      .environment = {{"PATH", "/usr/bin:/bin"},
                      {"TESSERA_FAKE_WORKER", options_.script},
                      {"XDG_RUNTIME_DIR", folder_ / "sockets"}},
      .open_files = options_.open_files,
      .processes = options_.processes,
      .errors = options_.errors};
  child.environment.insert(options_.environment.begin(), options_.environment.end());
  if (options_.fake_workers) {
    child.arguments.push_back("--fake-workers");
  } else if (!options_.worker.empty()) {
    child.environment["TESSERA_WORKER"] = options_.worker;
  }
  child.arguments.insert(child.arguments.end(), options_.arguments.begin(), options_.arguments.end());
  return std::make_unique<ChildProcess>(child);
}

bool TestServer::Start() {
  const bool started = TryStart();
  EXPECT_TRUE(started) << "the server did not start: " << process_->errors();
  return started;
}

bool TestServer::TryStart() {
  process_ = Launch();
  if (!process_->WaitForOutput("\n")) return false;
  const boost::json::value ports = boost::json::parse(process_->output());
  port_ = static_cast<uint16_t>(ports.at("http").as_int64());
  grpc_port_ = static_cast<uint16_t>(ports.at("grpc").as_int64());
  admin_port_ = static_cast<uint16_t>(ports.at("admin").as_int64());
  return true;
}

std::string TestServer::ErrorsOfStart() {
  const std::unique_ptr<ChildProcess> process = Launch();
  EXPECT_NE(process->Wait(), 0);
  return process->errors();
}

void TestServer::WaitUntilReady() {
  WaitUntil("ready", [this] { return Call("GET", "/readyz").status == 200; });
}

void TestServer::WaitUntilLogged(const std::string& text) const {
  const bool logged = WaitUntil(text, [&] { return absl::StrContains(process_->errors(), text); });
  EXPECT_TRUE(logged) << "the server logged:\n" << process_->errors();
}

void TestServer::Kill() {
  process_->Signal(SIGKILL);
  process_->Wait();
  process_.reset();
}

std::optional<pid_t> TestServer::ServingProcess() const {
  const pid_t supervisor = process_->pid();
  pid_t child = 0;
  const bool found = WaitUntil("a serving process", [&] {
    std::ifstream children(absl::StrCat("/proc/", supervisor, "/task/", supervisor, "/children"));
    return static_cast<bool>(children >> child);
  });
  if (!found) return std::nullopt;
  return child;
}

void TestServer::CrashServingProcess(int signal) const {
  const std::optional<pid_t> serving = ServingProcess();
  ASSERT_TRUE(serving.has_value());
  kill(*serving, signal);
  ASSERT_TRUE(WaitUntilGone(*serving));
}

std::vector<pid_t> TestServer::ReplaceBy(const std::function<void()>& change) {
  std::vector<pid_t> workers;
  absl::Duration began;
  do {
    workers = Workers();
    began = base::SteadyNow();
    change();
    WaitUntilReady();
  } while (base::SteadyNow() - began > absl::Seconds(5) && !::testing::Test::HasFailure());
  return workers;
}

int TestServer::Terminate() {
  process_->Signal(SIGTERM);
  const int code = process_->Wait();
  process_.reset();
  return code;
}

TestResponse TestServer::Call(const std::string& method, const std::string& target, const std::string& body,
                              const std::string& idempotency_key) {
  HttpTestClient client(port_);
  std::vector<server::HttpHeader> headers;
  if (!idempotency_key.empty()) headers.push_back({"Idempotency-Key", idempotency_key});
  return client.Call(method, target, body, headers);
}

std::string TestServer::Submit(const std::string& prompt, const std::string& more) {
  const TestResponse response =
      Call("POST", "/v1/jobs", absl::StrCat(R"({"prompt": ")", prompt, R"(", "size": "64x64", "seed": 5)", more, "}"));
  EXPECT_EQ(response.status, 202) << response.body;
  if (response.status != 202) return "";
  return std::string(boost::json::parse(response.body).at("id").as_string());
}

boost::json::object TestServer::Get(const std::string& job) {
  const TestResponse response = Call("GET", "/v1/jobs/" + job);
  if (response.status != 200) return {{"status", absl::StrCat("HTTP ", response.status)}};
  return boost::json::parse(response.body).as_object();
}

std::string TestServer::StatusOf(const std::string& job) { return std::string(Get(job).at("status").as_string()); }

std::string TestServer::Ended(const std::string& job) {
  std::string status;
  const bool ended = WaitUntil(absl::StrCat("the end of ", job), [&] {
    status = StatusOf(job);
    return status == "done" || status == "failed" || status == "cancelled" || status == "HTTP 404";
  });
  if (!ended) ADD_FAILURE() << WhatItDoes(job);
  return status;
}

std::string TestServer::WhatItDoes(const std::string& job) {
  std::vector<std::string> log = absl::StrSplit(process_->errors(), '\n');
  std::erase_if(log, [](const std::string& line) { return absl::StrContains(line, R"("event":"call")"); });
  std::ifstream trace_file(folder_ / kTrace);
  std::vector<std::string> trace;
  for (std::string line; std::getline(trace_file, line);) trace.push_back(line);
  const auto last = [](const std::vector<std::string>& lines) {
    const size_t shown = std::min<size_t>(lines.size(), 40);
    return absl::StrJoin(lines.end() - static_cast<std::ptrdiff_t>(shown), lines.end(), "\n");
  };
  return absl::StrCat("the job: ", boost::json::serialize(Get(job)), "\nthe server: ", Call("GET", "/v1/server").body,
                      "\nthe end of its log:\n", last(log), "\nthe end of its trace:\n", last(trace));
}

std::string TestServer::ImageBytes(const boost::json::object& job, size_t index) {
  const boost::json::array& images = job.at("images").as_array();
  if (index >= images.size()) return absl::StrCat("no image ", index);
  const TestResponse response =
      Call("GET", absl::StrCat("/v1/images/", std::string(images[index].at("id").as_string())));
  return response.status == 200 ? response.body : absl::StrCat("HTTP ", response.status, ": ", response.body);
}

boost::json::object TestServer::Group(size_t index) {
  const TestResponse response = Call("GET", "/v1/server");
  if (response.status != 200) return {{"state", "no answer"}, {"restarts", 0}};
  return boost::json::parse(response.body).at("groups").at(index).as_object();
}

}  // namespace tessera
