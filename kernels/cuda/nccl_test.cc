// Compares the table of NCCL's functions with the list of symbols that the pinned library exports. If the machine has
// the library, also tests the table with it; that needs no GPU until a communicator is created.
#include "kernels/cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

namespace tessera::kernels {
namespace {

std::set<std::string> ListedFunctions() {
  std::ifstream file("kernels/cuda/library_symbols.txt");
  std::set<std::string> names;
  const std::string start = std::string(kNcclLibrary) + " ";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) names.insert(line.substr(start.size(), line.find('@') - start.size()));
  }
  return names;
}

TEST(NcclApiTest, ThePinnedLibraryHasEveryFunctionOfTheTable) {
  const std::set<std::string> listed = ListedFunctions();
  ASSERT_GE(listed.size(), 50u);
  for (const char* name : kNcclFunctionNames) EXPECT_TRUE(listed.contains(name)) << name;
  EXPECT_FALSE(listed.contains("ncclAllGatherv"));
}

#ifdef TESSERA_NCCL_LIBRARY

TEST(NcclApiTest, TheLibraryOfThisMachineFillsTheTableAndSaysWhyItCannotWorkWithoutAGpu) {
  std::string problem;
  const NcclApi* api = OpenNccl(TESSERA_NCCL_LIBRARY, problem);
  ASSERT_NE(api, nullptr) << problem;
  EXPECT_EQ(api->version, kNcclApiVersion);
  int version = 0;
  ASSERT_EQ(api->get_version(&version), NcclResult::kSuccess);
  EXPECT_GE(version, kOldestNccl);
  NcclId id;
  ASSERT_EQ(api->get_unique_id(&id), NcclResult::kSuccess);
  EXPECT_NE(id.bytes, NcclId().bytes);
  EXPECT_NE(std::string(api->error_text(NcclResult::kInvalidUsage)), "");
  EXPECT_EQ(api->group_start(), NcclResult::kSuccess);
  EXPECT_EQ(api->group_end(), NcclResult::kSuccess);
  // The configuration is accepted: a rank outside the world is refused before any device is used.
  NcclComm* comm = nullptr;
  const NcclResult refused = api->init_rank(&comm, 1, id, 1, 4);
  EXPECT_NE(refused, NcclResult::kSuccess);
  EXPECT_NE(refused, NcclResult::kInProgress);
}

#else

TEST(NcclApiTest, AMachineWithoutTheLibrarySaysSo) {
  std::string problem;
  EXPECT_EQ(OpenNccl("libnccl_that_is_not_there.so.2", problem), nullptr);
  EXPECT_THAT(problem, testing::HasSubstr("libnccl.so.2 cannot be loaded"));
}

#endif

}  // namespace
}  // namespace tessera::kernels
