#include "runtime/group/model_contents.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

// A transformer with one tensor of that many bytes, all zeros except one; the file is sparse.
class ModelContentsTest : public ::testing::Test {
 protected:
  void Write(int64_t bytes, int64_t other_byte) {
    folder_.Write("model_index.json", R"({"_class_name": "X", "transformer": ["diffusers", "T"]})");
    folder_.Write("transformer/config.json", "{}");
    const std::string header =
        absl::StrCat(R"({"w":{"dtype":"U8","shape":[)", bytes, R"(],"data_offsets":[0,)", bytes, "]}}");
    const std::string path = folder_ / "transformer/diffusion_pytorch_model.safetensors";
    std::ofstream file(path, std::ios::binary);
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << header;
    file.seekp(static_cast<std::streamoff>(sizeof(length) + header.size()) + other_byte);
    file.put(1);
    file.close();
    std::filesystem::resize_file(path, sizeof(length) + header.size() + static_cast<uint64_t>(bytes));
  }

  std::string Digest() {
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(folder_.path());
    if (!folder.ok()) return std::string(folder.status().message());
    control::ModelDescription description;
    description.components = {{.name = "transformer",
                               .role = control::ComponentRole::kTransformer,
                               .files = {"diffusion_pytorch_model.safetensors"}}};
    const absl::StatusOr<ModelContents> contents =
        DigestContents(*folder, description, [] { return absl::OkStatus(); });
    return contents.ok() ? contents->model : std::string(contents.status().message());
  }

  const TestFolder folder_;
};

// Weights of published models have both sizes.
TEST_F(ModelContentsTest, EveryByteOfWeightsOfAnySizeCounts) {
  for (const int64_t bytes : {int64_t{1000}, (int64_t{256} << 20) + 4096}) {
    Write(bytes, 3);
    const std::string digest = Digest();
    EXPECT_EQ(digest.size(), 64u) << digest;
    EXPECT_EQ(Digest(), digest);
    Write(bytes, bytes - 1);
    EXPECT_NE(Digest(), digest);
  }
}

}  // namespace
}  // namespace tessera::runtime
