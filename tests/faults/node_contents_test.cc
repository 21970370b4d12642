// Tests adapters on groups across hosts: a server and two nodes are processes with separate folders, and their workers
// are real. Each node stores the adapter that the server sends it.
#include <gmock/gmock.h>
#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/faults/node_cluster.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The model `here` is on the server's host, and `there` on both nodes with the same layout.
std::vector<std::string> GroupsHereAndThere() {
  const std::string begin =
      absl::StrCat("{model: ", fs::current_path().string(), "/tests/golden/pipelines/sd3, layout: cfg=2, name: ");
  return {begin + "here}", begin + "there, devices: [node-a/cpu:0, node-b/cpu:0]}"};
}

class NodeContentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.server().options().admin = "{address: 127.0.0.1, port: 0}";
    for (const char* model : {"here", "there"}) fs::create_directories(adapters_ / model);
    ASSERT_TRUE(cluster_.Start());
    RunNodes();
    for (const std::string model : {"here", "there"}) {
      const std::string name = model + "-style";
      fs::copy("tests/golden-inputs/adapters/sd3_kohya.safetensors",
               adapters_ / absl::StrCat(model, "/", name, ".safetensors"));
      const TestResponse loaded =
          HttpTestClient(cluster_.server().admin_port(), absl::Minutes(1))
              .Call("POST", "/v1/load_lora_adapter", absl::StrCat(R"({"lora_name": ")", name, R"("})"));
      ASSERT_EQ(loaded.status, 200) << loaded.body;
      digest_ = boost::json::parse(loaded.body).at("digest").as_string();
    }
    here_ = PictureOf("here");
    ASSERT_NE(here_, PictureOf("here", /*scale=*/0)) << "the adapter changes the picture";
  }
  void TearDown() override { EXPECT_EQ(cluster_.server().Terminate(), 0); }

  void RunNodes() {
    for (const char* name : {"node-a", "node-b"}) {
      cluster_.Run(name);
      ASSERT_TRUE(cluster_.HasJoined(name));
    }
    cluster_.server().WaitUntilReady();
  }
  void EndNode(const std::string& name) {
    cluster_.node(name).Signal(SIGTERM);
    cluster_.node(name).Wait();
    WaitUntil("the end of its workers", [&] { return cluster_.Workers(name).empty(); });
  }
  // The next job loads the adapter again.
  void RestartGroup() {
    for (const pid_t worker : cluster_.Workers("node-b")) {
      kill(worker, SIGKILL);
      ASSERT_TRUE(WaitUntilGone(worker));
    }
    WaitUntil("the group's next ranks", [&] { return cluster_.Workers("node-b").size() == 1; });
    cluster_.server().WaitUntilReady();
  }

  std::string Submit(const std::string& model, double scale) {
    return cluster_.server().Submit(
        "red apple", absl::StrCat(R"(, "num_inference_steps": 3, "model": ")", model, R"(", "loras": [{"name": ")",
                                  model, R"(-style", "scale": )", scale, "}]"));
  }
  // Compares pixels only, because the file's parameters name the model.
  std::vector<uint8_t> PictureOf(const std::string& model, double scale = 1) {
    const std::string job = Submit(model, scale);
    EXPECT_EQ(cluster_.server().Ended(job), "done") << cluster_.server().Get(job);
    const auto decoded = server::DecodeImage(cluster_.server().ImageBytes(cluster_.server().Get(job)));
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    return decoded.ok() ? decoded->image.bytes : std::vector<uint8_t>();
  }

  // Returns the path of a node's copy.
  std::string CopyOf(const std::string& name) const {
    return absl::StrCat(cluster_.Folder(name), "/cache/tessera/node-", name, "/", digest_);
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Writes other values into the second half of the copy, which keeps its size.
  void ChangeCopyOf(const std::string& name) const {
    const std::string path = CopyOf(name);
    std::string bytes = Bytes(path);
    ASSERT_FALSE(bytes.empty()) << path;
    for (size_t i = bytes.size() / 2; i < bytes.size(); ++i) bytes[i] ^= 1;
    fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
    ASSERT_EQ(Bytes(path), bytes);
  }
  void ExpectPictureAndCopies() {
    EXPECT_TRUE(PictureOf("there") == here_);
    const std::string original = Bytes("tests/golden-inputs/adapters/sd3_kohya.safetensors");
    for (const char* name : {"node-a", "node-b"}) EXPECT_TRUE(Bytes(CopyOf(name)) == original) << name;
  }
  void ExpectDamageLogged(const std::string& name) {
    const std::string text = absl::StrCat("content ", digest_, " was damaged on the disk");
    EXPECT_TRUE(WaitUntil(text, [&] { return absl::StrContains(cluster_.node(name).errors(), text); }))
        << cluster_.node(name).errors();
  }

  const TestFolder adapters_;
  NodeCluster cluster_{{.groups = GroupsHereAndThere(),
                        .nodes = "beat: 100ms, lost_after: 60s, join_wait: 1s",  // no node is lost by silence
                        .settings = absl::StrCat("adapter_folder: ", adapters_.path(), "\n")}};
  std::string digest_;
  std::vector<uint8_t> here_;
};

TEST_F(NodeContentsTest, APictureWithAnAdapterIsThatOfTheServersHostAlsoAfterTheNodesHaveRestarted) {
  ASSERT_NO_FATAL_FAILURE(ExpectPictureAndCopies());
  for (const char* name : {"node-a", "node-b"}) EndNode(name);
  ASSERT_NO_FATAL_FAILURE(RunNodes());
  ExpectPictureAndCopies();
}

TEST_F(NodeContentsTest, ACopyThatWasDamagedWhileItsNodeWasDownIsSentAgain) {
  ASSERT_NO_FATAL_FAILURE(ExpectPictureAndCopies());
  for (const char* name : {"node-a", "node-b"}) EndNode(name);
  fs::resize_file(CopyOf("node-a"), 1000);
  ASSERT_NO_FATAL_FAILURE(ChangeCopyOf("node-b"));
  ASSERT_NO_FATAL_FAILURE(RunNodes());
  ExpectPictureAndCopies();
  for (const char* name : {"node-a", "node-b"}) ExpectDamageLogged(name);
}

// A node reads a copy once; after that, the ranks that load it find the damage.
TEST_F(NodeContentsTest, AJobWhoseCopyHasChangedWhileItsNodeRunsFailsByTheAdaptersName) {
  ASSERT_NO_FATAL_FAILURE(ExpectPictureAndCopies());
  ASSERT_NO_FATAL_FAILURE(ChangeCopyOf("node-b"));
  ASSERT_NO_FATAL_FAILURE(RestartGroup());
  const std::string job = Submit("there", /*scale=*/1);
  EXPECT_EQ(cluster_.server().Ended(job), "failed");
  EXPECT_THAT(boost::json::serialize(cluster_.server().Get(job).at("error")),
              AllOf(HasSubstr("rank 1 of 2 on node-b"), HasSubstr(R"(the adapter \"there-style\")"), HasSubstr(digest_),
                    Not(HasSubstr(cluster_.Folder("")))));
  EndNode("node-b");
  cluster_.Run("node-b");
  ExpectPictureAndCopies();
  ExpectDamageLogged("node-b");
}

}  // namespace
}  // namespace tessera
