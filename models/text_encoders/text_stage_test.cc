#include "models/families/text_stage.h"

#include <gtest/gtest.h>

#include <memory>

#include "models/loading/load_options.h"

namespace tessera::models {
namespace {

// T5 of a golden model, in double precision.
class TextStageTest : public testing::Test {
 protected:
  TextStageTest() {
    std::vector<std::string> warnings;
    const ModelFolder folder = *ModelFolder::Open("tests/golden/pipelines/flux_dev");
    TextStageConfig config = *ReadTextStage(folder, "tokenizer_2", "text_encoder_2", warnings);
    width_ = config.config.width;
    stage_ = std::make_unique<TextStage>(folder, std::move(config), LoadOptions{.dtype = at::kDouble},
                                         std::make_shared<PromptCache>(1 << 20));
  }

  EncodedText Encode(int64_t max_length, const TextPlan& plan) {
    const c10::InferenceMode no_gradients;
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    bool cached = true;
    return *stage_->Encode({.text = "two cats in rain", .field = "prompt", .max_length = max_length, .plan = plan},
                           {.attention = attention, .tensor = one, .world = one}, cached);
  }

  int64_t width_ = 0;
  std::unique_ptr<TextStage> stage_;
};

TEST_F(TextStageTest, DroppedTokensAreEncodedAndTheirStatesNotReturned) {
  const EncodedText whole = Encode(12, {.padding = TextPadding::kMasked});
  const EncodedText dropped = Encode(10, {.kept = 1, .dropped = 2, .padding = TextPadding::kMasked});
  EXPECT_EQ(dropped.tokens, whole.tokens - 2);
  EXPECT_TRUE(at::equal(dropped.hidden, at::cat({whole.hidden.slice(0, 0, 1), whole.hidden.slice(0, 3)})));
}

TEST_F(TextStageTest, SelectedStatesAreSideBySide) {
  const at::Tensor last = Encode(8, {}).hidden, first = Encode(8, {.states = {0}}).hidden;
  const at::Tensor both = Encode(8, {.states = {-1, 0}}).hidden;
  ASSERT_EQ(both.size(1), 2 * width_);
  EXPECT_TRUE(at::equal(both, at::cat({last, first}, 1)));
  EXPECT_FALSE(at::equal(last, first));
}

}  // namespace
}  // namespace tessera::models
