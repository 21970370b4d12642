#include "models/loading/weight_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <vector>

#include "base/files/file_identity.h"
#include "kernels/ops.h"
#include "models/layers/linear.h"
#include "models/layers/token_embedding.h"
#include "models/loading/deferred_weight.h"
#include "models/loading/eight_bits.h"
#include "models/weights/load_meter.h"
#include "parallel/rank_groups.h"
#include "tests/support/wait_until.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A folder with one safetensors file of fp32 tensors: name, shape as JSON, values.
class WeightLoaderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("weight_loader_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct Stored {
    std::string name, dtype, shape;
    std::string bytes;
  };

  static std::string Floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  absl::Status LoadFrom(const std::vector<Stored>& tensors, const ParamTable& table) {
    Write(tensors);
    const absl::StatusOr<WeightFolder> folder = WeightFolder::Open(folder_.string(), "part");
    return folder.ok() ? LoadWeights(*folder, table, "part") : folder.status();
  }

  void Write(const std::vector<Stored>& tensors) const {
    std::string header = "{", data;
    for (const Stored& tensor : tensors) {
      header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
                "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + tensor.bytes.size()) + "]}";
      data += tensor.bytes;
    }
    header += '}';
    const uint64_t length = header.size();
    std::ofstream file(folder_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << data;
  }

  // Writes a matrix [2, 4] in int8 with a scale for each row.
  void WriteEightBits() const {
    Write({{"w.weight", "I8", "[2,4]", {1, 2, 3, 4, -1, -2, -3, -4}},
           {"w.weight_scale", "F32", "[2,1]", Floats({0.5, 2})}});
  }

  std::filesystem::path folder_;
};

TEST_F(WeightLoaderTest, PutsEveryTensorInItsPlaceOfAPackedStorage) {
  ParamTable table(at::kFloat, at::kCPU);
  const Linear linear(ParamScope(table) / "a", 2, {{"q", 1}, {"k", 2}}, {.bias = false});
  ASSERT_TRUE(
      LoadFrom({{"a.k.weight", "F32", "[2,2]", Floats({3, 4, 5, 6})}, {"a.q.weight", "F32", "[1,2]", Floats({1, 2})}},
               table)
          .ok());
  EXPECT_TRUE(at::equal(table.params()[0].storage, at::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}).reshape({3, 2})));
}

TEST_F(WeightLoaderTest, WidensHalfPrecisionWithoutRounding) {
  ParamTable table(at::kDouble, at::kCPU);
  table.Add({.name = "h", .shape = {2}});
  table.Add({.name = "b", .shape = {1}});
  // fp16 0x3555 = 0.333251953125 and 0x0001 = 2^-24; bf16 0x3EAB = 0.333984375.
  ASSERT_TRUE(LoadFrom({{"h", "F16", "[2]", std::string("\x55\x35\x01\x00", 4)},
                        {"b", "BF16", "[1]", std::string("\xAB\x3E", 2)}},
                       table)
                  .ok());
  EXPECT_TRUE(at::equal(table.params()[0].Value(), at::tensor({0.333251953125, 0x1p-24}, at::kDouble)));
  EXPECT_TRUE(at::equal(table.params()[1].Value(), at::tensor({0.333984375}, at::kDouble)));
}

// Two outputs, one input, three frames of 1 x 2: of each frame of values the last two of six are kept.
TEST_F(WeightLoaderTest, KeepsTheLastSliceInTimeOfACausalConvolution) {
  const std::string floats = Floats({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {  // read directly, and through a buffer
    ParamTable table(dtype, at::kCPU);
    const std::shared_ptr<at::Tensor> weight = table.AddConvolution({.name = "conv", .shape = {2, 1, 3, 1, 2}});
    EXPECT_EQ(table.bytes(), 4 * static_cast<int64_t>(c10::elementSize(dtype)));
    ASSERT_TRUE(LoadFrom({{"conv", "F32", "[2,1,3,1,2]", floats}}, table).ok());
    EXPECT_TRUE(at::equal(*weight, at::tensor({4, 5, 10, 11}, dtype).view({2, 1, 1, 2})));
    EXPECT_THAT(std::string(LoadFrom({{"conv", "F32", "[2,1,1,1,2]", Floats({0, 1, 2, 3})}}, table).message()),
                HasSubstr("conv: [2, 1, 1, 1, 2] in the file, [2, 1, 3, 1, 2] by the configuration"));
  }
}

TEST_F(WeightLoaderTest, ReportsAllMissingUnexpectedAndMisshapenTensorsInOneError) {
  ParamTable table(at::kFloat, at::kCPU);
  for (const char* name : {"one", "two", "three"}) table.Add({.name = name, .shape = {2}});
  const absl::Status status = LoadFrom(
      {{"three", "F32", "[1]", Floats({1})}, {"four", "F32", "[1]", Floats({1})}, {"five", "F32", "[1]", Floats({1})}},
      table);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("part"), HasSubstr("missing (2):\n    one [2]\n    two [2]"),
                    HasSubstr("unexpected (2):\n    five [1]\n    four [1]"),
                    HasSubstr("three: [1] in the file, [2] by the configuration")));
}

TEST_F(WeightLoaderTest, PassesOverTheRestOfALargerModelAndNamesIt) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "encoder.block.0.weight", .shape = {1}});
  table.IgnoreInFile("buffer");
  ASSERT_TRUE(LoadFrom({{"encoder.block.0.weight", "F32", "[1]", Floats({7})},
                        {"decoder.block.0.weight", "F32", "[1]", Floats({1})},
                        {"lm_head.weight", "I32", "[1]", Floats({1})},
                        {"buffer", "F32", "[1]", Floats({1})}},
                       table)
                  .ok());
  EXPECT_EQ(table.params()[0].Value().item<float>(), 7);
  const absl::StatusOr<WeightFolder> folder = WeightFolder::Open(folder_.string(), "part");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(ExtraTensors(*folder, table), testing::ElementsAre("decoder.block.0.weight", "lm_head.weight"));
}

TEST_F(WeightLoaderTest, PassesOverAPartThatIsNotBuilt) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "model.text.weight", .shape = {1}});
  const std::vector<Stored> file = {{"model.text.weight", "F32", "[1]", Floats({7})},
                                    {"model.vision.weight", "F32", "[1]", Floats({1})}};
  EXPECT_FALSE(LoadFrom(file, table).ok()) << "it has the scope of a parameter";
  table.IgnoreScopeInFile("model.vision.");
  EXPECT_TRUE(LoadFrom(file, table).ok());
}

TEST_F(WeightLoaderTest, RefusesABlockMoreThanTheConfigurationHas) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "block.0.weight", .shape = {1}});
  const absl::Status status =
      LoadFrom({{"block.0.weight", "F32", "[1]", Floats({7})}, {"block.1.weight", "F32", "[1]", Floats({1})}}, table);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unexpected (1):\n    block.1.weight [1]"));
}

TEST_F(WeightLoaderTest, RefusesANormThatTheConfigurationDoesNotHave) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "block.0.weight", .shape = {1}});
  const absl::Status status = LoadFrom(
      {{"block.0.weight", "F32", "[1]", Floats({7})}, {"block.0.norm_q.weight", "F32", "[1]", Floats({1})}}, table);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unexpected (1):\n    block.0.norm_q.weight [1]"));
}

TEST_F(WeightLoaderTest, AcceptsAliasesAndIgnoredNames) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "new", .shape = {1}, .aliases = {"old"}});
  table.IgnoreInFile("buffer");
  ASSERT_TRUE(LoadFrom({{"old", "F32", "[1]", Floats({7})}, {"buffer", "F32", "[1]", Floats({1})}}, table).ok());
  EXPECT_EQ(table.params()[0].Value().item<float>(), 7);
}

TEST_F(WeightLoaderTest, KeepsPackedWeightsAsTheyAreStored) {
  WriteEightBits();
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  const at::Tensor codes = at::tensor({1, 2, 3, 4, -1, -2, -3, -4}, at::kChar).view({2, 4}).view(at::kByte);
  const at::Tensor scales = at::tensor({0.5f, 2.0f}).view({2, 1});
  for (int rank = 0; rank < 2; ++rank) {
    for (const LinearRole role : {LinearRole::kReplicated, LinearRole::kColumn, LinearRole::kRow}) {
      ParamTable table(at::kFloat, at::kCPU, {.tensor = {.rank = rank, .size = 2}}, StoredForms(folder));
      table.AddProduct({{.name = "w.weight", .shape = {2, 4}, .role = role}});
      ASSERT_EQ(LoadWeights(folder, table, "part"), absl::OkStatus());
      const Param& param = table.params()[0];
      ASSERT_TRUE(param.form.has_value());
      EXPECT_EQ(param.form->type, kernels::QuantType::kInt8);
      const bool rows = role == LinearRole::kColumn, columns = role == LinearRole::kRow;
      EXPECT_TRUE(at::equal(param.storage, rows      ? codes.narrow(0, rank, 1)
                                           : columns ? codes.narrow(1, 2 * rank, 2)
                                                     : codes));
      EXPECT_TRUE(at::equal(param.scales, rows ? scales.narrow(0, rank, 1) : scales));
      EXPECT_EQ(table.bytes(), param.storage.numel() + 4 * param.scales.numel());
    }
  }
}

TEST_F(WeightLoaderTest, WidensPackedWeightsThatAreNoProducts) {
  WriteEightBits();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    ParamTable table(dtype, at::kCPU);
    const at::Tensor weight = table.Add({.name = "w.weight", .shape = {2, 4}});
    const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
    ASSERT_EQ(LoadWeights(folder, table, "part"), absl::OkStatus());
    EXPECT_TRUE(at::equal(weight, at::tensor({0.5, 1.0, 1.5, 2.0, -2.0, -4.0, -6.0, -8.0}).to(dtype).view({2, 4})));
  }
}

// Products of the weights of one matrix that are packed differently.
TEST_F(WeightLoaderTest, MultipliesByRowsOfSeveralForms) {
  Write({{"a.k.weight", "F32", "[1,2]", Floats({3, 4})},
         {"a.q.weight", "F8_E4M3", "[2,2]", std::string("\x38\x40\x38\xb8", 4)},  // 1, 2, 1, -1
         {"a.q.weight_scale", "F32", "[]", Floats({0.5})},
         {"a.v.weight", "F32", "[1,2]", Floats({5, 6})}});
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  ParamTable table(at::kFloat, at::kCPU, {}, StoredForms(folder));
  const Linear linear(ParamScope(table) / "a", 2, {{"q", 2}, {"k", 1}, {"v", 1}}, {.bias = false});
  ASSERT_EQ(LoadWeights(folder, table, "part"), absl::OkStatus());
  table.PackForInference();
  parallel::SingleRank alone;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = alone, .world = alone};
  const at::Tensor y = linear.Forward(at::tensor({1.f, 10.f}).view({1, 2}), context);
  EXPECT_TRUE(at::equal(y, at::tensor({10.5f, -4.5f, 43.f, 65.f}).view({1, 4}))) << y;
}

TEST_F(WeightLoaderTest, LooksUpRowsOfATableThatStaysQuantized) {
  Write({{"a.weight", "F8_E4M3", "[3,2]", std::string("\x38\x40\x38\xb8\x40\x40", 6)},  // 1, 2; 1, -1; 2, 2
         {"a.weight_scale", "F32", "[3]", Floats({0.5, 2, 3})},
         {"b.weight", "F32", "[2,2]", Floats({1, 2, 3, 4})}});
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    ParamTable table(dtype, at::kCPU, {}, StoredForms(folder));
    const TokenEmbedding packed(table, "a.weight", 3, 2, {}), plain(table, "b.weight", 2, 2, {});
    ASSERT_EQ(LoadWeights(folder, table, "part"), absl::OkStatus());
    table.PackForInference();
    EXPECT_EQ(table.params()[0].storage.nbytes(), 6u) << "widened";
    const at::Tensor found = packed.Forward(at::tensor({2, 0, 1, 2}, at::kLong).view({2, 2}));
    EXPECT_EQ(found.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(found, at::tensor({6., 6., .5, 1., 2., -2., 6., 6.}).to(dtype).view({2, 2, 2}))) << found;
    EXPECT_TRUE(at::equal(plain.Forward(at::tensor({1}, at::kLong)), at::tensor({3, 4}).to(dtype).view({1, 2})));
  }
  // Only products are quantized on loading.
  ParamTable table(at::kFloat, at::kCPU, {}, InStorage(control::WeightStorage::kInt8));
  const TokenEmbedding plain(table, "b.weight", 2, 2, {});
  EXPECT_FALSE(table.params()[0].form.has_value());
}

TEST_F(WeightLoaderTest, QuantizesPlainWeights) {
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.push_back(std::sin(static_cast<float>(i)));
  Write({{"w.weight", "F32", "[2,32]", Floats(values)}, {"v.weight", "F32", "[1,2]", Floats({1, 2})}});
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  using kernels::QuantType;
  for (const QuantType type : {QuantType::kF8E4M3, QuantType::kInt8, QuantType::kQ8_0}) {
    ParamTable table(at::kFloat, at::kCPU, {}, [type](const ParamSpec& spec) -> std::optional<QuantForm> {
      return spec.shape[1] % kernels::BlockOf(type).values == 0 ? std::optional(QuantForm{.type = type}) : std::nullopt;
    });
    const auto product = table.AddProduct({{.name = "w.weight", .shape = {2, 32}}});
    table.AddProduct({{.name = "v.weight", .shape = {1, 2}}});
    ASSERT_EQ(LoadWeights(folder, table, "part"), absl::OkStatus());
    const WeightRows& rows = product->rows.at(0);
    const at::Tensor wide = kernels::WidenWeight(
        {.type = rows.form->type, .values = rows.values, .scales = rows.scales, .table = {}, .in = 32}, at::kFloat);
    const at::Tensor expected = at::tensor(values).view({2, 32});
    const double error = (wide - expected).abs().max().item<double>();
    EXPECT_GT(error, 0);
    EXPECT_LT(error, type == QuantType::kF8E4M3 ? 0.04 : 0.005);
    // Two columns are no block of 32.
    EXPECT_EQ(table.params()[1].form.has_value(), type != QuantType::kQ8_0);
  }
}

TEST_F(WeightLoaderTest, RefusesRanksThatWouldCutABlock) {
  Write({{"w.weight", "F32", "[1,32]", Floats(std::vector<float>(32, 1))}});
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  ParamTable table(at::kFloat, at::kCPU, {.tensor = {.rank = 0, .size = 2}},
                   [](const ParamSpec&) { return QuantForm{.type = kernels::QuantType::kQ8_0}; });
  table.AddProduct({{.name = "w.weight", .shape = {1, 32}, .role = LinearRole::kRow}});
  EXPECT_THAT(std::string(LoadWeights(folder, table, "part").message()),
              HasSubstr("tensor=2 divides the 32 columns of w.weight within a block of Q8_0"));
}

TEST_F(WeightLoaderTest, NamesAWeightThatIsNotFinite) {
  const float infinite = std::numeric_limits<float>::infinity();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {  // read directly, and through a buffer
    ParamTable table(dtype, at::kCPU);
    table.Add({.name = "w", .shape = {3}});
    EXPECT_THAT(std::string(LoadFrom({{"w", "F32", "[3]", Floats({1, infinite, 2})}}, table).message()),
                HasSubstr("the weight \"w\" holds a number that is not finite"));
  }
}

TEST_F(WeightLoaderTest, ReportsHowMuchItHasRead) {
  constexpr int64_t kRows = 2560, kColumns = 2048;  // 20 MiB, more than is read in one turn
  Write({{"weight", "F32", "[2560,2048]", std::string(kRows * kColumns * sizeof(float), '\0')}});
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "weight", .shape = {kRows, kColumns}});
  std::vector<uint64_t> reads;
  LoadMeter meter({{"part", 1000}}, [&](uint64_t read, uint64_t total) {
    EXPECT_EQ(total, 1000u);
    reads.push_back(read);
  });
  const WeightFolder folder = *WeightFolder::Open(folder_.string(), "part");
  ASSERT_TRUE(LoadWeights(folder, table, "part", &meter).ok());
  EXPECT_THAT(reads, testing::ElementsAre(0, 400, 800, 1000));
}

// A product of two parts that is read when it is used first.
class DeferredProductTest : public WeightLoaderTest {
 protected:
  static constexpr int64_t kOut = 80, kIn = 96;

  void WriteParts(float scale = 1) const {
    std::vector<float> q(kOut * kIn), k(kOut * kIn);
    for (size_t i = 0; i < q.size(); ++i) {
      q[i] = scale * static_cast<float>(i % 37) - 5;
      k[i] = 3 - scale * static_cast<float>(i % 23);
    }
    Write({{"a.q.weight", "F32", "[80,96]", Floats(q)},
           {"a.k.weight", "F32", "[80,96]", Floats(k)},
           {"a.q.bias", "F32", "[80]", Floats(std::vector<float>(kOut, 1))},
           {"a.k.bias", "F32", "[80]", Floats(std::vector<float>(kOut, 2))}});
  }

  // The time of the change is another one, however fast the test is.
  void WriteAfter(const std::filesystem::path& file, float scale) const {
    const base::FileIdentity before = base::IdentityOf(file);
    ASSERT_TRUE(WaitUntil("another time of change", [&] {
      WriteParts(scale);
      return !(base::IdentityOf(file) == before);
    }));
  }

  std::shared_ptr<const WeightFolder> Folder() const {
    return std::make_shared<const WeightFolder>(*WeightFolder::Open(folder_.string(), "part"));
  }

  struct Loaded {
    explicit Loaded(at::ScalarType dtype, const WeightShare& share = {}, LinearRole role = LinearRole::kReplicated)
        : table(dtype, at::kCPU, share),
          linear(ParamScope(table) / "a", kIn, {{"q", kOut}, {"k", kOut}}, {.role = role}) {}

    at::Tensor Forward() const {
      parallel::SingleRank alone;
      parallel::LocalAttention attention;
      const at::Tensor x = at::arange(3 * kIn, table.dtype()).div_(100).view({3, kIn});
      return linear.Forward(x, {.attention = attention, .tensor = alone, .world = alone});
    }

    ParamTable table;
    Linear linear;
  };
};

TEST_F(DeferredProductTest, HasTheBitsOfOneThatIsReadAtOnce) {
  WriteParts();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int size : {1, 2}) {
      const WeightShare share = {.tensor = {.rank = size - 1, .size = size}};
      Loaded at_once(dtype, share, LinearRole::kColumn), deferred(dtype, share, LinearRole::kColumn);
      ASSERT_EQ(LoadWeights(*Folder(), at_once.table, "part"), absl::OkStatus());
      ASSERT_EQ(LoadDeferred(Folder(), deferred.table, "part"), absl::OkStatus());
      at_once.table.PackForInference();
      deferred.table.PackForInference();
      EXPECT_TRUE(at::equal(deferred.Forward(), at_once.Forward()));
      EXPECT_TRUE(at::equal(deferred.Forward(), at_once.Forward())) << "the second time";
    }
  }
}

TEST_F(DeferredProductTest, IsReadWhenItIsUsedFirstAndOnlyThen) {
  WriteParts();
  Loaded loaded(at::kFloat);
  ASSERT_EQ(LoadDeferred(Folder(), loaded.table, "part"), absl::OkStatus());
  loaded.table.PackForInference();
  const std::filesystem::path file = folder_ / "model.safetensors";
  WriteAfter(file, /*scale=*/2);
  EXPECT_THAT([&] { loaded.Forward(); }, testing::ThrowsMessage<WeightReadError>(HasSubstr("was written to")));

  Loaded used(at::kFloat);
  ASSERT_EQ(LoadDeferred(Folder(), used.table, "part"), absl::OkStatus());
  used.table.PackForInference();
  const at::Tensor y = used.Forward();
  WriteAfter(file, /*scale=*/3);
  EXPECT_TRUE(at::equal(used.Forward(), y));
}

TEST_F(DeferredProductTest, OfAFileThatWasReplacedIsTheOneThatWasOpened) {
  WriteParts();
  Loaded loaded(at::kFloat), at_once(at::kFloat);
  ASSERT_EQ(LoadDeferred(Folder(), loaded.table, "part"), absl::OkStatus());
  ASSERT_EQ(LoadWeights(*Folder(), at_once.table, "part"), absl::OkStatus());
  loaded.table.PackForInference();
  at_once.table.PackForInference();
  std::filesystem::rename(folder_ / "model.safetensors", folder_ / "old");
  WriteParts(/*scale=*/2);
  std::filesystem::remove(folder_ / "old");
  EXPECT_TRUE(at::equal(loaded.Forward(), at_once.Forward()));
}

TEST_F(DeferredProductTest, OfAFileThatHasBecomeShorterIsAnErrorOfItsUse) {
  WriteParts();
  Loaded loaded(at::kFloat);
  ASSERT_EQ(LoadDeferred(Folder(), loaded.table, "part"), absl::OkStatus());
  loaded.table.PackForInference();
  std::filesystem::resize_file(folder_ / "model.safetensors", 1000);
  EXPECT_THAT([&] { loaded.Forward(); }, testing::ThrowsMessage<WeightReadError>(HasSubstr("it was")));
  EXPECT_THROW(loaded.Forward(), WeightReadError) << "the second time";
}

TEST_F(DeferredProductTest, IsCheckedWhenTheModelIsLoaded) {
  constexpr int64_t kRows = 2560, kColumns = 512;  // several reads
  std::vector<float> values(kRows * kColumns, 1);
  values.back() = std::numeric_limits<float>::infinity();
  Write({{"a.weight", "F32", "[2560,512]", Floats(values)}});
  ParamTable table(at::kBFloat16, at::kCPU);
  const Linear linear(ParamScope(table) / "a", kColumns, kRows, {.bias = false});
  EXPECT_THAT(LoadDeferred(Folder(), table, "part").message(), AllOf(HasSubstr("a.weight"), HasSubstr("not finite")));
}

TEST_F(WeightLoaderTest, RefusesWeightsThatAreIntegers) {
  ParamTable table(at::kFloat, at::kCPU);
  table.Add({.name = "w", .shape = {1}});
  EXPECT_THAT(std::string(LoadFrom({{"w", "I32", "[1]", std::string(4, '\0')}}, table).message()),
              HasSubstr("stored as I32"));
}

}  // namespace
}  // namespace tessera::models
