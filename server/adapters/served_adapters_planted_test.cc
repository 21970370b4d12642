// Checks that a job gets the bytes it was accepted with, and that planted bugs are found.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/parameters/adapter_use.h"
#include "server/adapters/served_adapters.h"
#include "tests/support/planted_bug.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

const std::vector<std::string>& Models() {
  static const std::vector<std::string> models = {"model"};
  return models;
}

struct OpenAdapters {
  explicit OpenAdapters(const TestFolder& folder)
      : contents(*ContentStore::Open({.own_folder = folder / "kept", .own_suffix = ".safetensors"})),
        adapters(*ServedAdapters::Open(
            {.folder = folder / "adapters", .check = nullptr, .log = [](const base::LogLine&) {}}, *contents)) {
    adapters->Scan(Models());
  }
  ServedAdapters* operator->() const { return adapters.get(); }

  const std::unique_ptr<ContentStore> contents;
  const std::unique_ptr<ServedAdapters> adapters;
};

// What Locate returns for a job that was accepted with the adapter's first bytes.
struct Located {
  absl::Status status;
  std::string bytes;
};

Located Locate(ServedAdapters& adapters, const std::string& digest) {
  std::vector<control::AdapterUse> accepted = {{.name = "style", .digest = digest}};
  Located located{.status = adapters.Locate(accepted), .bytes = ""};
  std::ifstream file(accepted[0].file, std::ios::binary);
  located.bytes.assign(std::istreambuf_iterator<char>(file), {});
  return located;
}

// The operator replaces the file and loads it while the job waits.
bool AnAcceptedJobGetsTheBytesOfThen() {
  const TestFolder folder;
  const std::string then = OneTensor("then");
  folder.Write("adapters/style.safetensors", then);
  const OpenAdapters adapters(folder);
  if (adapters->Of("model").size() != 1) return false;
  const std::string digest = adapters->Of("model")[0].digest;
  folder.Write("adapters/style.safetensors", OneTensor("now"));
  if (!adapters->Load("style", Models()).ok()) return false;
  const Located located = Locate(*adapters.adapters, digest);
  return located.status.ok() && located.bytes == then;
}

// The server restarts, and the copy has other bytes.
bool OtherBytesUnderTheDigestAreAFailure() {
  const TestFolder folder;
  const std::string path = folder.Write("adapters/style.safetensors", OneTensor("then"));
  std::string digest;
  {
    const OpenAdapters adapters(folder);
    if (adapters->Of("model").size() != 1) return false;
    digest = adapters->Of("model")[0].digest;
  }
  std::filesystem::remove(path);
  const std::string kept = absl::StrCat("kept/", digest, ".safetensors");
  std::filesystem::remove(folder / kept);
  folder.Write(kept, OneTensor("now"));
  return Locate(*OpenAdapters(folder).adapters, digest).status.code() == absl::StatusCode::kDataLoss;
}

struct AdapterBug {
  const char* name;
  bool (*holds)();
};

class PlantedAdapterBugTest : public testing::TestWithParam<AdapterBug> {};

TEST_P(PlantedAdapterBugTest, IsFound) {
  ASSERT_TRUE(GetParam().holds());
  const PlantedBug planted(GetParam().name);
  EXPECT_FALSE(GetParam().holds());
}

INSTANTIATE_TEST_SUITE_P(, PlantedAdapterBugTest,
                         testing::Values(AdapterBug{"adapter_is_not_pinned", AnAcceptedJobGetsTheBytesOfThen},
                                         AdapterBug{"kept_bytes_are_not_checked", OtherBytesUnderTheDigestAreAFailure}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::server
