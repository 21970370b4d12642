#include "tests/front/command_line_fixture.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/image/image_file.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

}  // namespace

CommandLineTest::CommandLineTest() {
  for (const char* name : {"work", "sockets", "models/tiny"}) fs::create_directories(folder_ / name);
  std::ofstream(folder_ / "models/tiny/model_index.json") << R"({"_class_name": "FakePipeline"})";
}

CommandLineTest::~CommandLineTest() {
  for (const pid_t pid : Workers()) EXPECT_TRUE(WaitUntilGone(pid)) << "a worker was left";
  EXPECT_EQ(SocketFolders(), 0u);
}

size_t CommandLineTest::SocketFolders() const {
  return std::distance(fs::directory_iterator(folder_ / "sockets"), fs::directory_iterator());
}

std::unique_ptr<ChildProcess> CommandLineTest::Start(const std::vector<std::string>& arguments,
                                                     const std::string& script) {
  ChildOptions options;
  options.arguments = {TESSERA_EXECUTABLE};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.folder = WorkFolder();
  options.environment = {{"PATH", "/usr/bin:/bin"},
                         {"TESSERA_WORKER", FAKE_WORKER},
                         {"TESSERA_FAKE_WORKER", script},
                         {"TESSERA_MODEL", ModelsFolder() + "/tiny"},
                         {"TESSERA_CERTIFICATES", folder_ / "certificates"},
                         {"XDG_RUNTIME_DIR", folder_ / "sockets"}};
  options.largest_file = largest_file_;
  return std::make_unique<ChildProcess>(options);
}

CommandLineTest::Result CommandLineTest::Run(const std::vector<std::string>& arguments, const std::string& script) {
  const std::unique_ptr<ChildProcess> child = Start(arguments, script);
  const int exit_code = child->Wait();
  return {.exit_code = exit_code, .output = child->output(), .errors = child->errors()};
}

std::vector<boost::json::object> CommandLineTest::Events(const std::string& output) {
  std::vector<boost::json::object> events;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(line, error);
    if (error || !value.is_object()) {
      ADD_FAILURE() << "not a JSON object: " << line;
      continue;
    }
    events.push_back(value.get_object());
  }
  return events;
}

std::vector<pid_t> CommandLineTest::Workers() const {
  return ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_ / "sockets");
}

pid_t CommandLineTest::WorkerPid() const {
  std::vector<pid_t> workers;
  WaitUntil("a worker", [&] { return !(workers = Workers()).empty(); });
  return workers.empty() ? -1 : workers[0];
}

std::vector<std::string> CommandLineTest::Files() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(WorkFolder())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string CommandLineTest::Read(const std::string& name) const {
  std::ifstream file(WorkFolder() + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

server::DecodedImage CommandLineTest::ReadImage(const std::string& name) const {
  absl::StatusOr<server::DecodedImage> image = server::DecodeImage(Read(name));
  EXPECT_TRUE(image.ok()) << name << ": " << image.status();
  return image.ok() ? *std::move(image) : server::DecodedImage();
}

void CommandLineTest::Write(const std::string& name, const std::string& bytes) const {
  std::ofstream(WorkFolder() + "/" + name, std::ios::binary) << bytes;
}

}  // namespace tessera
