// Full-size models on a CPU in control groups with the main memory of a small machine, without swap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/machine/machine_memory.h"
#include "tests/cuda/gguf_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/faults/limited_group.h"
#include "tests/front/child_process.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGigabyte = 1'000'000'000;

struct SmallMachine {
  const char* name;
  void (*write)(const TestFolder&);
  const char* model;
  std::vector<std::string> options;
  int64_t gigabytes;
  // Of a machine that is too small, and what the refusal names.
  int64_t too_few;
  const char* refusal;
};

std::ostream& operator<<(std::ostream& out, const SmallMachine& machine) { return out << machine.name; }

class CpuMemoryTest : public testing::TestWithParam<SmallMachine> {
 protected:
  void SetUp() override {
    if (!IsLongRun()) GTEST_SKIP() << "only with TESSERA_LONG=1";
    GetParam().write(folder_);
  }

  struct Finished {
    int exit_code = 0;
    std::string errors;
    int64_t kills = 0;
  };
  // Makes a picture in one step in a group of this limit. Null where this process may not make one.
  std::unique_ptr<Finished> Generate(int64_t gigabytes, const std::vector<std::string>& more) const {
    const std::unique_ptr<LimitedGroup> group = LimitedGroup::Make(gigabytes * kGigabyte);
    if (group == nullptr) return nullptr;
    ChildOptions options{
        .arguments = {TESSERA_EXECUTABLE, "generate", "a cat", "--model", folder_ / GetParam().model, "--device=cpu",
                      "--dtype=bf16", "--size=256x256", "--steps=1", "--certify=off", "--overwrite",
                      "--output=" + (folder_ / "a.png")},
        .folder = std::filesystem::current_path(),
        .environment = {
            {"PATH", "/usr/bin:/bin"}, {"TESSERA_WORKER", REAL_WORKER}, {"XDG_RUNTIME_DIR", folder_.path()}}};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    auto finished = std::make_unique<Finished>();
    EXPECT_TRUE(group->Enter());
    const int64_t before = base::ReadOutOfMemoryKills();
    {
      ChildProcess child(options);
      finished->exit_code = child.Wait();
      finished->errors = child.errors();
    }
    finished->kills = base::ReadOutOfMemoryKills() - before;
    EXPECT_TRUE(group->Leave());
    return finished;
  }

  const TestFolder folder_;
};

TEST_P(CpuMemoryTest, APictureIsMadeInTheMainMemoryOfASmallMachine) {
  const SmallMachine& machine = GetParam();
  const std::unique_ptr<Finished> refused = Generate(machine.too_few, machine.options);
  if (refused == nullptr) GTEST_SKIP() << "this process may not make a control group with a memory limit";
  EXPECT_NE(refused->exit_code, 0);
  EXPECT_EQ(refused->kills, 0) << "it is refused before it is loaded";
  EXPECT_THAT(refused->errors, HasSubstr(machine.refusal));
  const std::unique_ptr<Finished> made = Generate(machine.gigabytes, machine.options);
  EXPECT_EQ(made->exit_code, 0) << made->errors;
  EXPECT_EQ(made->kills, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.png"));
}

INSTANTIATE_TEST_SUITE_P(Machines, CpuMemoryTest,
                         testing::Values(SmallMachine{"flux_dev_q4_k",
                                                      WriteWholeFluxGguf,
                                                      "flux_dev/flux_dev.gguf",
                                                      {},
                                                      16,
                                                      12,
                                                      "it fits with --text-encoders stream"},
                                         SmallMachine{"z_image_int8",
                                                      WriteWholeZImage,
                                                      "z_image_turbo",
                                                      {"--weights=int8", "--text-encoders=stream"},
                                                      8,
                                                      6,
                                                      "are needed at least"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
