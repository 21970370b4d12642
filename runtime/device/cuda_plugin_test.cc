// Tests the real plug-in on a machine whose LibTorch has no CUDA libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/device/device.h"

namespace tessera::runtime {
namespace {

TEST(CudaPluginTest, NamesALibraryThatIsNotInstalled) {
  const absl::Status status = OpenDevice("cuda", TESSERA_CUDA_PLUGIN).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      testing::ContainsRegex("^device is cuda; the CUDA plug-in needs lib[A-Za-z_]+\\.so\\.[0-9]+, which is not"));
}

}  // namespace
}  // namespace tessera::runtime
