#include "client/cli/session/model_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "control/parameters/load_parameters.h"

namespace tessera::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Value>
ModelOptions Typing(Value control::Placement::*member, const std::string& text) {
  ModelOptions options;
  options.text(member) = text;
  return options;
}

std::string ErrorOf(const ModelOptions& options) {
  const absl::StatusOr<control::LoadParameters> load = RequestedLoad(options, "model");
  return load.ok() ? "" : std::string(load.status().message());
}

TEST(ModelOptionsTest, HandsPlacementsAndTheSizeOfTheCacheOn) {
  ModelOptions options = Typing(&control::Placement::text_encoders, "cpu");
  options.text(&control::Placement::autoencoder) = "unload";
  options.text(&control::Placement::offload) = "always";
  options.text(&control::Placement::threads) = "3";
  options.prompt_cache = "1048576";
  const absl::StatusOr<control::LoadParameters> load = RequestedLoad(options, "model");
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->model, "model");
  EXPECT_EQ(load->placement, (control::Placement{.threads = 3,
                                                 .text_encoders = control::ComponentPlacement::kCpu,
                                                 .autoencoder = control::AutoencoderPlacement::kUnloaded,
                                                 .offload = control::Offload::kAlways}));
  EXPECT_EQ(load->prompt_cache_bytes, uint64_t{1} << 40);
  EXPECT_EQ(RequestedLoad(ModelOptions(), "model")->placement, control::Placement());
}

TEST(ModelOptionsTest, NamesThePlacementThatIsSpeltMostLikeTheUnknownOne) {
  EXPECT_THAT(
      ErrorOf(Typing(&control::Placement::text_encoders, "unloaded")),
      AllOf(HasSubstr("placement of the text encoders 'unloaded' is unknown; valid values are rank0, cpu, unload, "
                      "sharded, stream"),
            HasSubstr("did you mean 'unload'?")));
  for (const char* typed : {"gpu", "sharded"}) {
    EXPECT_THAT(ErrorOf(Typing(&control::Placement::autoencoder, typed)),
                HasSubstr(absl::StrCat("placement of the autoencoder '", typed,
                                       "' is unknown; valid values are rank0, cpu, unload")));
  }
  EXPECT_THAT(ErrorOf(Typing(&control::Placement::offload, "alway")), HasSubstr("offload 'alway' is unknown"));
}

TEST(ModelOptionsTest, GivesEveryPlacementTheNameThatRequestsUse) {
  for (const char* name : {"rank0", "cpu", "unload", "sharded", "stream"}) {
    const ModelOptions options = Typing(&control::Placement::text_encoders, name);
    EXPECT_EQ(base::EnumName(RequestedLoad(options, "model")->placement.text_encoders), name);
  }
}

TEST(ModelOptionsTest, RefusesACacheOutOfRange) {
  ModelOptions options;
  options.prompt_cache = "0";
  EXPECT_EQ(ErrorOf(options), "");
  options.prompt_cache = "-1";
  EXPECT_THAT(ErrorOf(options), HasSubstr("prompt cache (MiB) is -1; valid values are 0 to 1048576"));
  options.prompt_cache = "1048577";
  EXPECT_THAT(ErrorOf(options), HasSubstr("the nearest is 1048576"));
}

TEST(ModelOptionsTest, RefusesThreadsOutOfRange) {
  EXPECT_THAT(ErrorOf(Typing(&control::Placement::threads, "-1")),
              HasSubstr("threads is -1; valid values are 0 to 1024"));
  EXPECT_THAT(ErrorOf(Typing(&control::Placement::threads, "many")), HasSubstr("threads"));
}

TEST(ModelOptionsTest, ReadsALimitOfMemoryAndRefusesOneThatNothingFitsInto) {
  for (const char* typed : {"12GiB", "7.5 gb", "512MiB"}) {
    EXPECT_EQ(RequestedLoad(Typing(&control::Placement::memory_limit, typed), "model")->placement.memory_limit, typed);
  }
  for (const char* typed : {"12", "GiB", "-1GiB", "1e3GiB", "12GiB of it"}) {
    EXPECT_THAT(ErrorOf(Typing(&control::Placement::memory_limit, typed)),
                HasSubstr("is not a size of memory; write a number and a unit, such as 12GiB"))
        << typed;
  }
  EXPECT_THAT(ErrorOf(Typing(&control::Placement::memory_limit, "511MiB")),
              HasSubstr("is 511.0 MiB; it must be at least 512.0 MiB"));
}

TEST(ModelOptionsTest, TheFirstTypedOptionOfThisMachineIsNamed) {
  EXPECT_EQ(LocalOption(ModelOptions()), "");
  EXPECT_EQ(LocalOption(Typing(&control::Placement::autoencoder, "cpu")), "--autoencoder");
  EXPECT_EQ(LocalOption(Typing(&control::Placement::offload, "never")), "--offload");
  ModelOptions streamed;
  for (ModelOptions::Typed& typed : streamed.placement) typed.flag = true;
  EXPECT_EQ(LocalOption(streamed), "--threads");
}

// Returns the table of the placement's options in docs/command-line.md.
std::string PlacementTable() {
  std::string table = "| option | meaning | valid | default |\n|---|---|---|---|\n";
  const control::Placement usual;
  const auto add = [&table]<class Value>(const auto& field, const Value& value) {
    std::string valid, shown = "off";
    if constexpr (base::NamedEnum<Value>) {
      valid = absl::StrCat("`", absl::StrJoin(base::EnumNames<Value>(), "`, `"), "`");
      shown = absl::StrCat("`", base::EnumName(value), "`");
    } else if constexpr (std::is_same_v<Value, std::string>) {
      shown = "none";
    } else if constexpr (!std::is_same_v<Value, bool>) {
      valid = absl::StrCat(field.valid.low, " to ", field.valid.high);
      shown = absl::StrCat(value);
    }
    absl::StrAppend(&table, "| `", PlacementOption(field.name), "` | ", field.help, " | ", valid, " | ", shown, " |\n");
  };
  base::ForEachField(add, usual);
  return table;
}

TEST(ModelOptionsTest, TheTableOfPlacementsIsMadeFromTheFields) {
  const char* path = "docs/command-line.md";
  const std::string begin =
      "<!-- Made from control/parameters/load_parameters.h: TESSERA_UPDATE_DOCUMENTS=1 cli_test. -->\n";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t start = text.find(begin), end = text.find("\n\n", start);
  ASSERT_NE(start, std::string::npos);
  const std::string made = text.substr(0, start) + begin + PlacementTable() + text.substr(end + 1);
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << made;
  EXPECT_TRUE(made == text) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
}

}  // namespace
}  // namespace tessera::client
