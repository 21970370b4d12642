#include "client/cli/models/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "base/files/sha256.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::client {
namespace {

using ::testing::HasSubstr;

const std::string kStyle = OneTensor("style"), kGrain = OneTensor("grain");

std::string DigestOf(const std::string& bytes) { return absl::BytesToHexString(base::Sha256Of(bytes)); }

TEST(AdapterFiles, AFileBecomesItsNameAndDigest) {
  const TestFolder folder;
  std::vector<control::AdapterUse> adapters = {{.name = folder.Write("my style.safetensors", kStyle), .scale = 0.5}};
  ASSERT_TRUE(OpenAdapterFiles(adapters).ok());
  EXPECT_EQ(adapters[0].name, "my_style");
  EXPECT_EQ(adapters[0].scale, 0.5);
  EXPECT_EQ(adapters[0].digest, DigestOf(kStyle));
  EXPECT_EQ(adapters[0].file, folder / "my style.safetensors");
  EXPECT_TRUE(control::CheckAdapters(adapters).ok());
}

TEST(AdapterFiles, AFolderOfPeftHasItsOwnName) {
  const TestFolder folder;
  folder.Write("style/adapter_model.safetensors", kStyle);
  folder.Write("style/adapter_config.json", "{}");
  std::vector<control::AdapterUse> adapters = {{.name = folder / "style/"}};
  ASSERT_TRUE(OpenAdapterFiles(adapters).ok());
  EXPECT_EQ(adapters[0].name, "style");
  EXPECT_EQ(adapters[0].digest, DigestOf(kStyle + "{}"));
  EXPECT_EQ(adapters[0].file, folder / "style");
}

TEST(AdapterFiles, WhatCannotBeUsedIsNamed) {
  const TestFolder folder;
  const auto refused = [](std::vector<control::AdapterUse> adapters) {
    return std::string(OpenAdapterFiles(adapters).message());
  };
  EXPECT_THAT(refused({{.name = folder / "none"}}), HasSubstr("none'"));
  EXPECT_THAT(refused({{.name = folder.Write("bad.safetensors", "no adapter")}}), HasSubstr("is not an adapter file"));
  EXPECT_THAT(
      refused({{.name = folder.Write("a/x.safetensors", kStyle)}, {.name = folder.Write("b/x.safetensors", kGrain)}}),
      HasSubstr("has the name 'x' of another one"));
}

TEST(AdapterFiles, ThoseOfAnImageAreFoundByTheirDigests) {
  const TestFolder folder;
  const std::string style = folder.Write("renamed.safetensors", kStyle),
                    grain = folder.Write("grain.safetensors", kGrain);
  const std::vector<control::AdapterUse> made = {{.name = "style", .digest = DigestOf(kStyle)}};
  std::vector<control::AdapterUse> adapters = made;
  ASSERT_TRUE(FindAdapterFiles({style}, adapters).ok());
  EXPECT_EQ(adapters[0].file, style);
  EXPECT_EQ(adapters[0].name, "style");
  adapters = made;
  const absl::Status missing = FindAdapterFiles({}, adapters);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("made with the adapter 'style'"));
  EXPECT_THAT(std::string(FindAdapterFiles({grain}, adapters).message()),
              HasSubstr("is not one that the image was made with"));
}

}  // namespace
}  // namespace tessera::client
