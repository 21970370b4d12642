#include "server/api/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "control/model/model_description.h"
#include "server/api/generation_request.h"
#include "server/metadata/parameters_text.h"
#include "tests/support/fake_model.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<const RequestFacts*> AllFacts() {
  std::vector<const RequestFacts*> all;
  base::ForEachFieldOf<ImageRequest>([&](const auto& field) { all.push_back(FindField(field.name)); });
  return all;
}

// A request gives pictures in another form than a job names them.
TEST(RequestFieldsTest, EveryParameterOfAJobExceptItsPicturesIsAField) {
  const std::set<std::string> pictures = {"images", "mask"};
  base::ForEachFieldOf<control::JobParameters>([&](const auto& field) {
    EXPECT_EQ(FindField(field.name) == nullptr, pictures.contains(field.name)) << field.name;
  });
}

TEST(RequestFieldsTest, NamesAreOfOneFieldEach) {
  std::set<std::string> ids, names, labels, options;
  for (const RequestFacts* facts : AllFacts()) {
    EXPECT_TRUE(ids.insert(facts->id).second) << facts->id;
    EXPECT_TRUE(labels.insert(Label(*facts)).second) << Label(*facts);
    if (!facts->half) {
      EXPECT_TRUE(names.insert(ApiName(*facts)).second) << ApiName(*facts);
    }
    if (facts->option != nullptr) {
      EXPECT_TRUE(options.insert(facts->option).second) << facts->option;
    }
  }
  EXPECT_GT(ids.size(), 40u);
}

// Sets a valid value that differs from the current one.
template <class Value>
void Change(const RequestFacts& facts, Value& value) {
  const absl::string_view id = facts.id == nullptr ? "" : facts.id;
  if constexpr (base::kIsOptional<Value>) {
    Change(facts, value.emplace());
  } else if constexpr (std::is_same_v<Value, std::string>) {
    value = id == "noise" ? "torch-cpu" : id == "sampler" ? "euler" : "x";
  } else if constexpr (std::is_same_v<Value, bool>) {
    value = true;
  } else if constexpr (std::is_integral_v<Value>) {
    value = facts.half ? 32 : 9;
  } else if constexpr (std::is_same_v<Value, double>) {
    value = 0.125;
  } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
    value = {2, 1};
  } else {
    base::ForEachField([&](const auto&, auto& member) { Change(facts, member); }, value.emplace_back());
  }
}

TEST(RequestFieldsTest, AModelRefusesEveryFieldThatItDoesNotRead) {
  control::ModelDescription model;
  model.max_steps = model.min_size = model.max_size = model.default_steps = 1;
  for (const RequestFacts* facts : AllFacts()) {
    if (facts->read_with == nullptr) continue;
    ImageRequest request;
    VisitField(facts->id, request, [&](const auto&, auto& value) { Change(*facts, value); });
    for (const auto& [names, name] :
         {std::pair(FieldNames::kApi, ApiName(*facts)), std::pair(FieldNames::kCommandLine, Label(*facts))}) {
      const absl::Status refused = Validate(request, model, names).status();
      EXPECT_EQ(ErrorField(refused), name);
      EXPECT_THAT(std::string(refused.message()), HasSubstr(name + " is "));
      EXPECT_THAT(std::string(refused.message()), HasSubstr("this model does not read it"));
    }
  }
}

TEST(RequestFieldsTest, EveryFieldOfAGenerationReachesItsParameterAndNoOther) {
  control::ModelDescription model = *FakeModel().description;
  model.can_bin = true;
  model.options.clear();
  for (const RequestFacts* facts : AllFacts()) {
    if (facts->read_with != nullptr) model.options.emplace_back(facts->read_with);
  }
  const ImageRequest base = {.prompt = "a", .skip_layers = {0}, .original_width = 8, .original_height = 8};
  const absl::StatusOr<control::JobParameters> before = Validate(base, model);
  ASSERT_TRUE(before.ok()) << before.status();
  for (const RequestFacts* facts : AllFacts()) {
    if (!facts->is_parameter) continue;
    ImageRequest request = base;
    VisitField(facts->id, request, [&](const auto&, auto& value) { Change(*facts, value); });
    const absl::StatusOr<control::JobParameters> job = Validate(request, model);
    ASSERT_TRUE(job.ok()) << job.status();
    std::vector<std::string> changed;
    const auto compare = [&](const auto& parameter, const auto& one, const auto& other) {
      if (one != other) changed.emplace_back(parameter.name);
    };
    base::ForEachField(compare, *before, *job);
    EXPECT_THAT(changed, ElementsAre(facts->id));
  }
}

TEST(RequestFieldsTest, EveryOptionComesBackFromAPicture) {
  std::vector<std::string> ids;
  base::ForEachFieldOf<control::PromptOptions>([&](const auto& field) { ids.emplace_back(field.name); });
  for (const std::string& changed : ids) {
    ImageParameters written = {.steps = 1, .width = 8, .height = 8};
    const auto change = [&](const auto& field, auto& value) {
      if (field.name != changed) return;
      if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
        value += 1;
      } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
        value = "x, y";
      } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<int32_t>>) {
        value = {3, 1};
      } else {
        base::ForEachField([](const auto&, auto& member) { Change({}, member); }, value.emplace_back());
      }
    };
    base::ForEachField(change, written.options);
    EXPECT_NE(written.options, control::PromptOptions()) << changed;
    const absl::StatusOr<std::string> text = FormatParameters(written);
    ASSERT_TRUE(text.ok()) << text.status();
    const absl::StatusOr<ImageParameters> read = ParseParameters(*text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->options, written.options) << *text;
  }
}

TEST(RequestFieldsTest, PicturesHaveTheKeysOfTheTable) {
  const absl::StatusOr<std::string> text =
      FormatParameters({.steps = 1,
                        .sampler = "euler",
                        .guidance_scale = 2,
                        .seed = 3,
                        .width = 8,
                        .height = 8,
                        .noise = "tessera",
                        .clean_caption = true,
                        .resolution_binning = true,
                        .max_sequence_length = 4,
                        .options = {.prompt_2 = "b",
                                    .prompt_3 = "c",
                                    .negative_prompt_2 = "d",
                                    .negative_prompt_3 = "e",
                                    .true_cfg_scale = 5,
                                    .guidance_rescale = 0.5,
                                    .cfg_normalization = 1.5,
                                    .cfg_truncation = 0.75,
                                    .clip_skip = 1,
                                    .skip_layers = {.layers = {1}, .scale = 1, .start = 0, .stop = 1},
                                    .original_size = {.height = 8, .width = 8, .crop_top = 1, .crop_left = 1}},
                        .adapters = {{.name = "style", .digest = std::string(64, 'a')}},
                        .strength = 0.5});
  ASSERT_TRUE(text.ok()) << text.status();
  for (const RequestFacts* facts : AllFacts()) {
    const absl::string_view id = facts->id;
    if ((facts->is_parameter && !facts->half && id != "prompt" && id != "negative_prompt") || id == "size") {
      EXPECT_THAT(", " + *text, HasSubstr(absl::StrCat(", ", MetadataKey(*facts), ": ")));
    }
  }
}

std::string ValidText(const base::Text& valid) { return absl::StrCat("UTF-8 of at most ", valid.most_bytes, " bytes"); }
std::string ValidText(const base::List<base::Integer>& valid) {
  return absl::StrCat(valid.each.low, " to ", valid.each.high);
}
template <class Valid>
std::string ValidText(const Valid& valid) {
  if constexpr (requires { valid.high; }) return absl::StrCat(valid.low, " to ", valid.high);
  if constexpr (requires { valid.most; }) return absl::StrCat("at most ", valid.most);
  return "";
}

// Returns the table in docs/command-line.md of options that only some models support.
std::string OptionsTable() {
  std::string table = "| option | in the list | meaning | valid |\n|---|---|---|---|\n";
  base::ForEachFieldOf<ImageRequest>([&](const auto& field) {
    const RequestFacts& facts = field.facts;
    if (facts.option == nullptr || facts.read_with == nullptr) return;
    absl::StrAppend(&table, "| `", facts.option, "` | `", facts.read_with, "` | ", facts.help, " | ",
                    ValidText(field.valid), " |\n");
  });
  return table;
}

TEST(RequestFieldsTest, TheTableOfOptionsIsMadeFromTheFields) {
  const char* path = "docs/command-line.md";
  const std::string begin = "<!-- Made from server/api/request_fields.h: TESSERA_UPDATE_DOCUMENTS=1 api_test. -->\n";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t start = text.find(begin), end = text.find("\n\n", start);
  ASSERT_NE(start, std::string::npos);
  const std::string made = text.substr(0, start) + begin + OptionsTable() + text.substr(end + 1);
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << made;
  EXPECT_TRUE(made == text) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
  // The other options have separate lines.
  for (const RequestFacts* facts : AllFacts()) {
    if (facts->option == nullptr || facts->option[0] != '-') continue;
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(facts->option, ','))) {
      EXPECT_THAT(made, HasSubstr(absl::StrCat("`", name, "`")));
    }
  }
}

}  // namespace
}  // namespace tessera::server
