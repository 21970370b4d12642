#include "runtime/group/prompt_broadcast.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/loading/load_plan.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/test_folder.h"
#include "tests/support/thread_ranks.h"

namespace tessera::runtime {
namespace {

at::Tensor Numbers(at::IntArrayRef shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count).view(shape).to(dtype);
}

// A prompt in which every field has a distinct value.
models::EncodedPrompt ManyFields() {
  const at::Tensor shared = Numbers({3, 4}, at::kBFloat16);
  return {
      .guidance = {.branches = {{.row = {.text = shared,
                                         .extras = {Numbers({5}, at::kFloat), Numbers({2, 2}, at::kLong),
                                                    Numbers({2}, at::kBool), Numbers({0, 7}, at::kHalf),
                                                    Numbers({}, at::kDouble), at::Tensor()}},
                                 .terms = {{.weight = -2.5, .start = 0.25, .stop = 0.75, .least_timestep = 300}, {}},
                                 .skipped_blocks = {7, -8, 9}},
                                {.row = {.text = shared.t(), .extras = {Numbers({1}, at::kByte)}}},
                                {.row = {.text = shared}},
                                {}},
                   .rescale = 0.7,
                   .norm_limit = 1.25,
                   .kept_norm_patch = 2,
                   .conditional = 2},
      .prompt_tokens = 77,
      .cached = true,
      .warnings = {"caf\xC3\xA9", "", std::string("a\0b", 3)}};
}

bool SameTensor(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

void ExpectSame(const models::EncodedPrompt& a, const models::EncodedPrompt& b) {
  EXPECT_EQ(a.guidance.rescale, b.guidance.rescale);
  EXPECT_EQ(a.guidance.norm_limit, b.guidance.norm_limit);
  EXPECT_EQ(a.guidance.kept_norm_patch, b.guidance.kept_norm_patch);
  EXPECT_EQ(a.guidance.conditional, b.guidance.conditional);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.cached, b.cached);
  EXPECT_EQ(a.warnings, b.warnings);
  ASSERT_EQ(a.guidance.branches.size(), b.guidance.branches.size());
  for (size_t i = 0; i < a.guidance.branches.size(); ++i) {
    const models::GuidanceBranch &x = a.guidance.branches[i], &y = b.guidance.branches[i];
    EXPECT_TRUE(SameTensor(x.row.text, y.row.text)) << i;
    EXPECT_EQ(x.skipped_blocks, y.skipped_blocks);
    ASSERT_EQ(x.row.extras.size(), y.row.extras.size());
    for (size_t e = 0; e < x.row.extras.size(); ++e) EXPECT_TRUE(SameTensor(x.row.extras[e], y.row.extras[e])) << e;
    ASSERT_EQ(x.terms.size(), y.terms.size());
    for (size_t t = 0; t < x.terms.size(); ++t) {
      EXPECT_EQ(x.terms[t].weight, y.terms[t].weight);
      EXPECT_EQ(x.terms[t].start, y.terms[t].start);
      EXPECT_EQ(x.terms[t].stop, y.terms[t].stop);
    }
  }
}

using Prompts = std::vector<absl::StatusOr<models::EncodedPrompt>>;

// Returns what each of `ranks` ranks receives if the first has `prompt`.
Prompts Received(const absl::StatusOr<models::EncodedPrompt>& prompt, int ranks) {
  Prompts received(static_cast<size_t>(ranks), absl::UnknownError(""));
  RunRanks(ranks, [&](ThreadRank& rank) {
    received[static_cast<size_t>(rank.rank())] =
        BroadcastPrompt(rank.rank() == 0 ? prompt : absl::UnknownError("not looked at"), rank.world(), rank.world(),
                        at::Device(at::kCPU));
  });
  return received;
}

TEST(PromptBroadcastTest, EveryFieldArrives) {
  for (const int ranks : {1, 2, 4}) {
    for (const absl::StatusOr<models::EncodedPrompt>& received : Received(ManyFields(), ranks)) {
      ASSERT_TRUE(received.ok()) << received.status();
      ExpectSame(*received, ManyFields());
    }
  }
}

TEST(PromptBroadcastTest, ARowThatBranchesShareTravelsOnce) {
  const at::Tensor row = Numbers({100, 100}, at::kFloat);
  RunRanks(2, [&](ThreadRank& rank) {
    const models::EncodedPrompt prompt{.guidance = {.branches = {{.row = {.text = row}}, {.row = {.text = row}}}}};
    EXPECT_TRUE(BroadcastPrompt(prompt, rank.world(), rank.world(), at::Device(at::kCPU)).ok());
    const int64_t bytes = rank.world().count(parallel::Collective::kBroadcast).bytes;
    if (rank.rank() == 0) {
      EXPECT_GE(bytes, 40000);
      EXPECT_LT(bytes, 41000);
    } else {
      EXPECT_EQ(bytes, 0);
    }
  });
}

TEST(PromptBroadcastTest, AnErrorArrivesEverywhereAndTheNextPromptAsWell) {
  RunRanks(3, [&](ThreadRank& rank) {
    const absl::Status error = absl::InvalidArgumentError("clip_skip is 99; valid for this model is 0 to 1");
    const absl::StatusOr<models::EncodedPrompt> first =
        BroadcastPrompt(rank.rank() == 0 ? error : absl::UnknownError("not looked at"), rank.world(), rank.world(),
                        at::Device(at::kCPU));
    EXPECT_EQ(first.status(), error);
    const absl::StatusOr<models::EncodedPrompt> second = BroadcastPrompt(
        rank.rank() == 0 ? ManyFields() : models::EncodedPrompt{}, rank.world(), rank.world(), at::Device(at::kCPU));
    ASSERT_TRUE(second.ok());
    ExpectSame(*second, ManyFields());
  });
}

TEST(PromptBroadcastTest, APromptTooLargeToSendIsAnErrorEverywhere) {
  models::EncodedPrompt prompt;
  prompt.warnings = {std::string(17 << 20, 'x')};
  for (const absl::StatusOr<models::EncodedPrompt>& received : Received(prompt, 2)) {
    EXPECT_EQ(received.status().code(), absl::StatusCode::kResourceExhausted) << received.status();
  }
}

// A group of two whose first rank sends the given tensors each time that it is asked.
class Scripted final : public parallel::Communicator {
 public:
  explicit Scripted(std::vector<at::Tensor> sent) : sent_(std::move(sent)) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }

 private:
  void DoBroadcast(const at::Tensor& tensor, int) override {
    if (next_ < sent_.size() && sent_[next_].sizes() == tensor.sizes()) tensor.copy_(sent_[next_]);
    ++next_;
  }
  std::vector<at::Tensor> sent_;
  size_t next_ = 0;
};

// Records what the first of two ranks sends.
class Recording final : public parallel::Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<at::Tensor> sent;

 private:
  void DoBroadcast(const at::Tensor& tensor, int) override { sent.push_back(tensor.clone()); }
};

std::vector<at::Tensor> Sent(const absl::StatusOr<models::EncodedPrompt>& prompt) {
  Recording world;
  EXPECT_EQ(BroadcastPrompt(prompt, world, world, at::Device(at::kCPU)).ok(), prompt.ok());
  return world.sent;
}

TEST(PromptBroadcastTest, ADescriptionOfAnyOtherBytesIsAPromptOrAnErrorOfTheGroup) {
  const std::vector<at::Tensor> good = Sent(ManyFields());
  int refused = 0;
  for (int64_t at = 0; at < good[1].size(0); ++at) {
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::vector<at::Tensor> bad = good;
      bad[1] = good[1].clone();
      bad[1][at] = value;
      Scripted world(bad);
      try {
        (void)BroadcastPrompt(absl::UnknownError(""), world, world, at::Device(at::kCPU));
      } catch (const parallel::CommError& error) {
        EXPECT_EQ(error.details().culprit, 0);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(PromptBroadcastTest, ADescriptionOfImpossibleLengthIsAnErrorOfTheGroup) {
  for (const int64_t size : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
    std::vector<at::Tensor> bad = Sent(ManyFields());
    bad[0].fill_(size);
    Scripted world(bad);
    EXPECT_THROW((void)BroadcastPrompt(absl::UnknownError(""), world, world, at::Device(at::kCPU)), parallel::CommError)
        << size;
  }
  std::vector<at::Tensor> shorter = Sent(ManyFields());
  shorter[1] = shorter[1].slice(0, 0, shorter[1].size(0) - 1);
  shorter[0].fill_(shorter[1].size(0));
  Scripted world(shorter);
  EXPECT_THROW((void)BroadcastPrompt(absl::UnknownError(""), world, world, at::Device(at::kCPU)), parallel::CommError);
}

class FamilyPromptTest : public testing::TestWithParam<const char*> {
 protected:
  // A plan counts the files' tensors. Those of some autoencoders are not used, or not as a whole.
  void ExpectBytes(int64_t bytes, int64_t planned) const {
    const auto vae = folder_.components().find("vae");
    if (vae != folder_.components().end() && vae->second.class_name == "AutoencoderKL") {
      EXPECT_EQ(bytes, planned);
    } else {
      EXPECT_LT(bytes, planned);
      EXPECT_GT(bytes, planned / 2);
    }
  }

  const models::ModelFolder folder_ = *models::ModelFolder::Open(GoldenPipeline(GetParam()));
  const models::FamilyEntry& entry_ = **models::FindFamily(folder_.class_name());
  const models::FamilyDescription description_ = *entry_.describe(folder_);

  models::PromptRequest Request() const {
    const bool text = description_.max_sequence_length > 0;
    models::PromptRequest request{.prompt = text ? "a cat on a red sofa" : "3",
                                  .max_sequence_length = description_.default_max_sequence_length,
                                  .guidance_scale = 4,
                                  .height = description_.min_size,
                                  .width = description_.min_size};
    if (text) request.negative_prompt = "blurred";
    request.options.true_cfg_scale = 3;
    request.options.guidance_rescale = 0.5;
    return request;
  }
};

TEST_P(FamilyPromptTest, EveryRankHasWhatTheFirstEncodedAndOnlyItHasEncoders) {
  int64_t other_bytes = 0;
  const models::LoadPlan plan = *models::PlanLoad(folder_, {});
  for (const models::PlannedComponent& component : plan.components) {
    if (!component.name.starts_with("text_encoder")) other_bytes += component.bytes;
  }
  for (const int ranks : {2, 4}) {
    Prompts prompts(static_cast<size_t>(ranks), absl::UnknownError(""));
    std::vector<int64_t> weight_bytes(static_cast<size_t>(ranks));
    RunRanks(ranks, [&](ThreadRank& rank) {
      const c10::InferenceMode no_gradients;
      const auto r = static_cast<size_t>(rank.rank());
      const std::unique_ptr<models::Family> family = *entry_.load(folder_, {.encodes_prompts = r == 0});
      weight_bytes[r] = family->weight_bytes();
      parallel::SingleRank one;
      parallel::LocalAttention attention;
      absl::StatusOr<models::EncodedPrompt> own = absl::UnknownError("another rank encodes");
      if (r == 0) own = family->Encode(Request(), {.attention = attention, .tensor = one, .world = rank.world()});
      prompts[r] = BroadcastPrompt(std::move(own), rank.world(), rank.world(), family->device());
    });
    ASSERT_TRUE(prompts[0].ok()) << prompts[0].status();
    EXPECT_FALSE(prompts[0]->guidance.branches.empty());
    EXPECT_EQ(weight_bytes[0] > weight_bytes[1], description_.max_sequence_length > 0);
    for (size_t r = 1; r < prompts.size(); ++r) {
      ASSERT_TRUE(prompts[r].ok()) << prompts[r].status();
      ExpectSame(*prompts[r], *prompts[0]);
      EXPECT_EQ(weight_bytes[r], weight_bytes[1]);
      ExpectBytes(weight_bytes[r], other_bytes);
    }
  }
}

TEST_P(FamilyPromptTest, ARankThatDoesNotEncodeReadsNoEncodersWeights) {
  const TestFolder copy;
  std::filesystem::copy(folder_.path(), copy.path(), std::filesystem::copy_options::recursive);
  for (const auto& [name, unused] : folder_.components()) {
    if (!name.starts_with("text_encoder")) continue;
    for (const auto& file : std::filesystem::directory_iterator(copy / name)) {
      if (file.path().extension() == ".safetensors") std::filesystem::remove(file.path());
    }
  }
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(copy.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::StatusOr<std::unique_ptr<models::Family>> family = entry_.load(*folder, {.encodes_prompts = false});
  ASSERT_TRUE(family.ok()) << family.status();
  const absl::StatusOr<models::LoadPlan> plan = models::PlanLoad(*folder, {.encodes_prompts = false});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectBytes((*family)->weight_bytes(), plan->host.resident);
  if (description_.max_sequence_length == 0) return;
  EXPECT_FALSE(entry_.load(*folder, {}).ok());
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  EXPECT_EQ((*family)->Encode(Request(), {.attention = attention, .tensor = one, .world = one}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyPromptTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
