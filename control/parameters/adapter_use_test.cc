#include "control/parameters/adapter_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/fields/field_error.h"
#include "control/parameters/job_parameters_wire.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

AdapterUse Adapter(const std::string& name, double scale = 1, char digit = 'a') {
  return {.name = name, .scale = scale, .digest = std::string(64, digit)};
}

TEST(AdapterUseTest, EveryMemberIsWalked) {
  [[maybe_unused]] const auto& [a1, a2, a3, a4] = AdapterUse();
  int fields = 0;
  base::ForEachFieldOf<AdapterUse>([&](const auto&) { ++fields; });
  EXPECT_EQ(fields, 4);
  EXPECT_EQ(internal::AdapterUse::descriptor()->field_count(), 4);
}

TEST(AdapterUseTest, TravelsWithAJobAsItIs) {
  JobParameters job;
  job.adapters = {Adapter("style", -0.75, 'a'), Adapter("grain", 0, 'b')};
  job.adapters[0].file = "/adapters/\xff.safetensors";  // a path need not be UTF-8
  internal::JobParameters wire;
  ToWire(job, &wire);
  std::string bytes;
  ASSERT_TRUE(wire.SerializeToString(&bytes));
  internal::JobParameters heard;
  ASSERT_TRUE(heard.ParseFromString(bytes));
  EXPECT_EQ(FromWire(heard).adapters, job.adapters);
}

TEST(AdapterUseTest, ANameIsNeitherAPathNorAnOptionNorEmpty) {
  for (const char* name : {"a", "style-v2", "_x", "Flux.1+detail_02"}) EXPECT_TRUE(IsAdapterName(name)) << name;
  for (const char* name : {"", ".", "..", "-x", "a/b", "/etc/passwd", "..\\x", "a b", "a:b", "a,b", "\xc3\xa4"}) {
    EXPECT_FALSE(IsAdapterName(name)) << name;
  }
  EXPECT_TRUE(IsAdapterName(std::string(kMaxAdapterNameBytes, 'x')));
  EXPECT_FALSE(IsAdapterName(std::string(kMaxAdapterNameBytes + 1, 'x')));
}

TEST(AdapterUseTest, TheNameOfAFileIsItsLastPartWithoutTheExtension) {
  EXPECT_EQ(AdapterNameOf("/data/loras/style.v2.safetensors"), "style.v2");
  EXPECT_EQ(AdapterNameOf("my style (2).safetensors"), "my_style__2_");
  for (const std::string& path :
       std::vector<std::string>{"", "/", ".hidden", "-dash.safetensors", "x/" + std::string(300, 'y'), "\xff.bin"}) {
    EXPECT_TRUE(IsAdapterName(AdapterNameOf(path))) << path << " gives " << AdapterNameOf(path);
  }
}

// Each case differs from a valid job only in what its message names.
TEST(AdapterUseTest, WhatNoRequestMaySayIsRefusedByName) {
  struct Case {
    std::vector<AdapterUse> adapters;
    std::string message;
  };
  AdapterUse relative = Adapter("x");
  relative.file = "x.safetensors";
  AdapterUse upper = Adapter("x", 1, 'A');
  std::vector<AdapterUse> many;
  for (size_t i = 0; i <= kMaxAdapters; ++i) many.push_back(Adapter("x" + std::to_string(i)));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {many, "loras has 9 entries; valid values are at most 8"},
      {{Adapter("../x")}, "loras[0].name is not valid; valid names have"},
      {{Adapter("x"), Adapter("y"), Adapter("x", 0.5)}, "loras has 'x' twice"},
      {{Adapter("x", nan)}, "loras[0].scale is nan; it must be a number from -16 to 16"},
      {{Adapter("x", infinity)}, "loras[0].scale is inf; it must be a number from -16 to 16, the nearest is 16"},
      {{Adapter("x", -16.5)}, "loras[0].scale is -16.5; it must be a number from -16 to 16, the nearest is -16"},
      {{upper}, "loras[0].digest is not 64 hexadecimal digits"},
      {{relative}, "loras[0].file is not an absolute path"},
  };
  JobParameters job{.prompt = "a", .height = 8, .width = 8, .steps = 1, .guidance_scale = 1};
  job.adapters = {Adapter("x"), Adapter("y", 0.5)};
  EXPECT_TRUE(base::CheckFields(job).ok()) << base::CheckFields(job);
  for (const Case& one : cases) {
    job.adapters = one.adapters;
    EXPECT_THAT(std::string(base::CheckFields(job).message()), HasSubstr(one.message));
    EXPECT_EQ(base::FieldOf(base::CheckFields(job)), "loras");
  }
}

TEST(AdapterUseTest, TheKeyDistinguishesJobsThatMustNotShareABatch) {
  const AdapterUse a = Adapter("a", 0.5, 'a'), b = Adapter("b", 0.5, 'b');
  EXPECT_EQ(AdapterKey({}), "");
  EXPECT_EQ(AdapterKey({a, b}), AdapterKey({a, b}));
  EXPECT_NE(AdapterKey({a}), AdapterKey({b}));
  EXPECT_NE(AdapterKey({a}), AdapterKey({Adapter("a", 0.5000000000000001, 'a')}));
  EXPECT_NE(AdapterKey({a, b}), AdapterKey({b, a}));
  EXPECT_NE(AdapterKey({a, b}), AdapterKey({a}));
}

TEST(AdapterUseTest, WhatChangesNothingIsNotInTheKey) {
  AdapterUse renamed = Adapter("other", 1, 'a');
  renamed.file = "/elsewhere";
  EXPECT_EQ(AdapterKey({Adapter("a", 1, 'a')}), AdapterKey({renamed}));
  EXPECT_EQ(AdapterKey({Adapter("a", 0, 'a')}), "");
  EXPECT_EQ(AdapterKey({Adapter("a", 0, 'a'), Adapter("b", 1, 'b')}), AdapterKey({Adapter("b", 1, 'b')}));
}

}  // namespace
}  // namespace tessera::control
