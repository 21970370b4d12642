// Tests adapters on a `tessera serve` with real workers: which ones it refuses to load, and how a running `tessera
// train` publishes to it. The models have a few thousand parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json/json.h"
#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"
#include "tests/front/child_process.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Finished {
  int exit_code = 0;
  std::vector<boost::json::object> events;
  std::string errors;

  std::vector<boost::json::object> Of(const std::string& event) const {
    std::vector<boost::json::object> of;
    for (const boost::json::object& line : events) {
      if (line.at("event").as_string() == event) of.push_back(line);
    }
    return of;
  }
};

class ServeAdaptersTest : public ::testing::Test {
 protected:
  ServeAdaptersTest() { fs::create_directories(adapters()); }

  std::string adapters() const { return folder_ / "adapters"; }

  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"OMP_WAIT_POLICY", "PASSIVE"},
                           {"XDG_RUNTIME_DIR", folder_.path()}};
    return std::make_unique<ChildProcess>(options);
  }

  // Serves these pipelines of tests/golden. `more` contains further lines of the configuration.
  void Serve(const std::vector<std::string>& pipelines, const std::string& more = "") {
    std::string config =
        absl::StrCat("listen:\n  http: {address: 127.0.0.1, port: 0}\n  grpc: off\n",
                     "  admin: {address: 127.0.0.1, port: 0}\ncertify: off\ndata_folder: ", folder_ / "data",
                     "\nadapter_folder: ", adapters(), "\n", more, "groups:\n");
    for (const std::string& pipeline : pipelines) {
      absl::StrAppend(&config, "  - {model: ", fs::current_path().string(), "/tests/golden/pipelines/", pipeline,
                      "}\n");
    }
    server_ = Start({"serve", "--config", folder_.Write("tessera.yaml", config)});
    ASSERT_TRUE(server_->WaitForOutput("}\n")) << server_->errors();
    const boost::json::value listening = boost::json::parse(server_->output());
    http_ = listening.at("http").to_number<uint16_t>();
    admin_ = listening.at("admin").to_number<uint16_t>();
  }

  void WaitUntilReady() const {
    WaitUntil("the server is ready", [this] { return HttpTestClient(admin_).Call("GET", "/readyz").status == 200; });
  }

  void StopServer() {
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait(), 0) << server_->errors();
  }

  TestResponse Load(const std::string& name) const {
    return HttpTestClient(admin_, absl::Minutes(1))
        .Call("POST", "/v1/load_lora_adapter", absl::StrCat(R"({"lora_name": ")", name, "\"}"));
  }

  static boost::json::object Object(const TestResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    return response.status == 200 ? boost::json::parse(response.body).as_object() : boost::json::object();
  }

  TestFolder folder_;
  std::unique_ptr<ChildProcess> server_;
  uint16_t http_ = 0, admin_ = 0;
};

TEST_F(ServeAdaptersTest, WhatDoesNotFitItsModelIsRefusedByNameAndNotLoaded) {
  const std::string golden = "tests/golden-inputs/";
  std::map<std::string, std::vector<std::string>> refused;  // what the message must name, by adapter
  std::set<std::string> pipelines;
  const absl::StatusOr<base::Json> cases = base::ParseJson(Bytes(golden + "cases.json"), "cases.json");
  ASSERT_TRUE(cases.ok()) << cases.status();
  for (const base::Json& one : cases->Find("cases")->items()) {
    if (*one.Find("kind")->AsString() != "adapter_refused") continue;
    // refused/PIPELINE/NAME.safetensors, or the file in a PEFT folder.
    const std::vector<std::string> parts = absl::StrSplit(*one.Find("file")->AsString(), '/');
    const std::string name = absl::StrCat(parts[1], "-", std::string(absl::StripSuffix(parts[2], ".safetensors")));
    pipelines.insert(parts[1]);
    fs::create_directories(absl::StrCat(adapters(), "/", parts[1]));
    fs::copy(absl::StrCat(golden, parts[0], "/", parts[1], "/", parts[2]),
             absl::StrCat(adapters(), "/", parts[1], "/", name, parts.size() == 3 ? ".safetensors" : ""));
    std::vector<std::string>& names = refused[name];
    for (const base::Json& what : one.Find("arguments")->Find("names")->items()) names.push_back(*what.AsString());
  }
  ASSERT_GE(refused.size(), 60u);
  const std::vector<std::string> sound = {"flux_kohya", "flux_comfy", "flux_peft_rslora", "sd3_kohya", "sd3_peft"};
  for (const std::string& name : sound) {
    const std::string pipeline = name.starts_with("flux") ? "flux_dev" : "sd3";
    fs::copy(absl::StrCat(golden, "adapters/", name, ".safetensors"),
             absl::StrCat(adapters(), "/", pipeline, "/", name, ".safetensors"));
  }
  Serve({pipelines.begin(), pipelines.end()});
  for (const auto& [name, names] : refused) {
    const TestResponse response = Load(name);
    EXPECT_EQ(response.status, 400) << name << ": " << response.body;
    EXPECT_THAT(response.body, HasSubstr(absl::StrCat("adapter '", name, "'")));
    for (const std::string& what : names) EXPECT_THAT(response.body, HasSubstr(what)) << name;
  }
  std::set<std::string> served;
  const boost::json::object models = Object(HttpTestClient(http_).Call("GET", "/v1/models"));
  for (const boost::json::value& model : models.at("data").as_array()) {
    if (!model.at("parent").is_null()) served.emplace(model.at("id").as_string());
  }
  EXPECT_THAT(served, testing::UnorderedElementsAreArray(sound));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "data/adapters"), fs::directory_iterator()),
            static_cast<std::ptrdiff_t>(sound.size()));
  StopServer();
}

// An image as a request received it.
struct Picture {
  std::string served_before;  // digest of the version served at the time of the request
  std::string digest;         // from the image's parameters
  std::vector<uint8_t> rgb;
};

class PublishingTest : public ServeAdaptersTest {
 protected:
  PublishingTest() {
    for (int index = 0; index < 2; ++index) {
      control::Frames image{.width = 64, .height = 64};
      for (int i = 0; i < image.width * image.height * 3; ++i) {
        image.bytes.push_back(static_cast<uint8_t>((i * (index + 3) / 7 + 40 * index) % 256));
      }
      folder_.Write(absl::StrCat("images/", index, ".png"), *server::EncodeImage(image, server::ImageFormat::kPng, {}));
      folder_.Write(absl::StrCat("images/", index, ".txt"), "a red house");
    }
  }

  // `publish` contains further fields of that section.
  std::unique_ptr<ChildProcess> Train(int steps, uint16_t port, const std::vector<std::string>& more = {},
                                      const std::string& publish = "") const {
    const std::string config = folder_.Write(
        "train.yaml",
        absl::StrCat("model: tests/golden/pipelines/pixart_sigma\noutput: ", folder_ / "run",
                     "\ndatasets: [{folder_path: ", folder_ / "images", ", resolution: 64}]\n",
                     "network: {type: lora, linear: 2}\ntrain: {dtype: fp32, batch_size: 1, lr: 0.05, steps: ", steps,
                     "}\npublish: {server: \"http://127.0.0.1:", port, "\", adapter_folder: ", adapters(),
                     ", name: style, publish_every: 1", publish, "}\n"));
    std::vector<std::string> arguments = {"train", config, "--json", "--threads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start(std::move(arguments));
  }

  static Finished Finish(ChildProcess& child) {
    Finished finished{.exit_code = child.Wait(), .events = {}, .errors = child.errors()};
    for (absl::string_view line : absl::StrSplit(child.output(), '\n', absl::SkipEmpty())) {
      finished.events.push_back(boost::json::parse(std::string(line)).as_object());
    }
    return finished;
  }

  boost::json::object Served() const { return Object(HttpTestClient(http_).Call("GET", "/v1/models/style")); }
  std::string ServedDigest() const {
    const boost::json::object served = Served();
    return served.contains("adapter_digest") ? std::string(served.at("adapter_digest").as_string()) : "";
  }

  // Returns no value if the request failed.
  std::optional<Picture> Generate(const std::string& adapter) const {
    const TestResponse response =
        HttpTestClient(http_, absl::Minutes(1))
            .Call("POST", "/v1/images/generations",
                  absl::StrCat(R"({"prompt": "red apple", "size": "64x64", "seed": 1,)",
                               R"("num_inference_steps": 3, "loras": [{"name": ")", adapter, "\"}]}"));
    if (response.status != 200) {
      ADD_FAILURE() << response.status << " " << response.body;
      return std::nullopt;
    }
    std::string file;
    absl::Base64Unescape(std::string(boost::json::parse(response.body).at("data").at(0).at("b64_json").as_string()),
                         &file);
    const absl::StatusOr<server::DecodedImage> decoded = server::DecodeImage(file);
    if (!decoded.ok()) return std::nullopt;
    const absl::StatusOr<server::ImageParameters> said = server::ParseParameters(decoded->parameters);
    if (!said.ok() || said->adapters.size() != 1) return std::nullopt;
    return Picture{.served_before = "", .digest = said->adapters[0].digest, .rgb = decoded->image.bytes};
  }
};

TEST_F(PublishingTest, PublicationsUnderLoadFailNoRequestAndMixNoVersions) {
  // An unreachable server does not end the run: the published files wait in the folder.
  const Finished alone = Finish(*Train(2, /*port=*/1));
  ASSERT_EQ(alone.exit_code, 0) << alone.errors;
  EXPECT_THAT(alone.Of("published"), testing::IsEmpty());
  ASSERT_EQ(alone.Of("warning").size(), 2u);
  EXPECT_THAT(std::string(alone.Of("warning")[0].at("message").as_string()), HasSubstr("step 1 is not published"));
  Serve({"pixart_sigma"});
  WaitUntilReady();
  EXPECT_EQ(Served().at("adapter_step").to_number<int>(), 2);
  std::vector<std::string> versions = {ServedDigest()};  // in order of publication

  std::mutex mutex;
  std::vector<Picture> pictures;
  std::atomic<bool> published_all = false;
  std::atomic<int> failed = 0;
  const auto ask = [&] {
    std::string served = ServedDigest();
    std::optional<Picture> picture = Generate("style");
    if (!picture.has_value()) return static_cast<void>(++failed);
    picture->served_before = std::move(served);
    const std::lock_guard lock(mutex);
    pictures.push_back(*std::move(picture));
  };
  ask();
  std::vector<std::thread> load;
  for (int i = 0; i < 3; ++i) {
    load.emplace_back([&] {
      while (!published_all && failed == 0) ask();
    });
  }
  const Finished trained = Finish(*Train(26, admin_, {"--resume=latest"}));
  published_all = true;
  for (std::thread& thread : load) thread.join();
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  EXPECT_THAT(trained.Of("warning"), testing::IsEmpty());
  std::vector<double> seconds;
  for (const boost::json::object& published : trained.Of("published")) {
    EXPECT_EQ(published.at("step").to_number<size_t>(), versions.size() + 2);
    versions.emplace_back(published.at("digest").as_string());
    seconds.push_back(published.at("seconds").to_number<double>());
  }
  ASSERT_EQ(versions.size(), 25u);
  ask();
  EXPECT_EQ(pictures.back().digest, versions.back());
  EXPECT_EQ(Served().at("adapter_step").to_number<int>(), 26);
  ASSERT_EQ(failed, 0);

  // Each image equals that of one version alone, the version that its parameters name.
  std::map<std::string, std::vector<uint8_t>> of_version;
  const auto index = [&](const std::string& digest) { return std::ranges::find(versions, digest) - versions.begin(); };
  for (const Picture& picture : pictures) {
    ASSERT_LT(index(picture.digest), std::ssize(versions));
    EXPECT_GE(index(picture.digest), index(picture.served_before)) << "a request got an older version than was served";
    auto& alone_with_it = of_version[picture.digest];
    if (alone_with_it.empty()) {
      const std::string name = absl::StrCat("version-", index(picture.digest));
      fs::copy(folder_ / absl::StrCat("data/adapters/", picture.digest, ".safetensors"),
               absl::StrCat(adapters(), "/", name, ".safetensors"));
      EXPECT_EQ(Object(Load(name)).at("digest").as_string(), picture.digest);
      const std::optional<Picture> reference = Generate(name);
      ASSERT_TRUE(reference.has_value());
      alone_with_it = reference->rgb;
    }
    EXPECT_EQ(picture.rgb, alone_with_it) << "of version " << index(picture.digest);
  }
  std::set<std::vector<uint8_t>> distinct;
  for (const auto& [digest, rgb] : of_version) distinct.insert(rgb);
  EXPECT_GE(distinct.size(), 2u);
  EXPECT_EQ(distinct.size(), of_version.size());
  std::ranges::sort(seconds);
  std::printf(
      "%zu publications under load: %.1f ms each within the server (median; at most %.1f ms), %zu pictures of %zu "
      "versions\n",
      seconds.size(), 1e3 * seconds[seconds.size() / 2], 1e3 * seconds.back(), pictures.size(), of_version.size());
  StopServer();
}

// `tessera keys` creates the key that the server accepts.
TEST_F(PublishingTest, AServerWithAdminKeysTakesPublicationsWithOneOfThem) {
  const std::unique_ptr<ChildProcess> keys = Start({"keys", "trainer", "--json"});
  ASSERT_EQ(keys->Wait(), 0) << keys->errors();
  const boost::json::value key = boost::json::parse(keys->output());
  const std::string secret = folder_.Write("secret", absl::StrCat(key.at("secret").as_string().c_str(), "\n"));
  const std::string no_key = folder_.Write("no-key", "tsk_of_another_server\n");
  fs::permissions(secret, fs::perms::owner_read);
  fs::permissions(no_key, fs::perms::owner_read);
  Serve({"pixart_sigma"},
        absl::StrCat("admin_keys_file: ",
                     folder_.Write("keys.txt", absl::StrCat(key.at("line").as_string().c_str(), "\n")), "\n"));
  WaitUntilReady();
  for (const std::string& publish : {std::string(), ", api_key_file: " + no_key}) {
    const Finished refused = Finish(*Train(1, admin_, {"--resume=latest"}, publish));
    ASSERT_EQ(refused.exit_code, 0) << refused.errors;
    EXPECT_THAT(refused.Of("published"), testing::IsEmpty());
    bool said = false;
    for (const boost::json::object& warning : refused.Of("warning")) {
      said =
          said || std::string(warning.at("message").as_string()).find("step 1 is not published") != std::string::npos;
    }
    EXPECT_TRUE(said) << publish;
    EXPECT_EQ(HttpTestClient(http_).Call("GET", "/v1/models/style").status, 404);
    fs::remove_all(folder_ / "run");
  }
  const Finished published = Finish(*Train(1, admin_, {"--resume=latest"}, ", api_key_file: " + secret));
  ASSERT_EQ(published.exit_code, 0) << published.errors;
  ASSERT_EQ(published.Of("published").size(), 1u);
  EXPECT_EQ(published.Of("published")[0].at("digest").as_string(), ServedDigest());
  StopServer();
}

}  // namespace
}  // namespace tessera
