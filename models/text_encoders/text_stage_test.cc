#include "models/families/text_stage.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "control/pictures/made_up_frames.h"
#include "models/loading/load_options.h"
#include "models/qwen_image/edit_prompt.h"
#include "models/text_encoders/picture_processor.h"

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

// The text encoder of a golden model that edits pictures.
class EditStage {
 public:
  EditStage() {
    std::vector<std::string> warnings;
    const ModelFolder folder = *ModelFolder::Open("tests/golden-edit/pipelines/qwen_edit_2511");
    stage_ = std::make_unique<TextStage>(folder, *ReadTextStage(folder, "tokenizer", "text_encoder", warnings),
                                         LoadOptions{.dtype = at::kFloat}, cache_);
    operators_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&EditStage::Count));
  }
  ~EditStage() { at::removeCallback(operators_); }

  // Encodes a text that holds one picture and was not encoded before.
  at::Tensor Encode(const std::string& text, const SharedPromptPictures& pictures) {
    const c10::InferenceMode no_gradients;
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    bool cached = true;
    const absl::StatusOr<EncodedText> encoded =
        stage_->Encode({.text = text,
                        .field = "prompt",
                        .max_length = 1024,
                        .plan = EditPlan(Editing::kPictures, /*count=*/1),
                        .pictures = pictures},
                       {.attention = attention, .tensor = one, .world = one}, cached);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_FALSE(cached);
    return encoded.ok() ? encoded->hidden : at::Tensor();
  }

  // The number of operators that a thread has run since the last call.
  static int64_t Operators() { return std::exchange(count_, 0); }

 private:
  static std::unique_ptr<at::ObserverContext> Count(const at::RecordFunction&) {
    ++count_;
    return nullptr;
  }

  static thread_local int64_t count_;
  at::CallbackHandle operators_ = at::INVALID_CALLBACK_HANDLE;
  std::shared_ptr<PromptCache> cache_ = std::make_shared<PromptCache>(64 << 20);
  std::unique_ptr<TextStage> stage_;
};
thread_local int64_t EditStage::count_ = 0;

TEST(EditStageTest, TextsWithTheSamePicturesShareWhatTheEncoderReadThemAs) {
  const SharedPromptPictures first = MakePromptPictures({control::NoiseFrame(96, 64, 3)}),
                             second = MakePromptPictures({control::FlatFrame(96, 64, 3, 200)});
  EditStage stage;
  stage.Encode("", first);
  EditStage::Operators();
  const at::Tensor shared = stage.Encode("make it blue", first);
  const int64_t with_shared = EditStage::Operators();
  const at::Tensor other = stage.Encode("make it blue", second);

  EditStage alone;
  EditStage::Operators();
  EXPECT_TRUE(at::equal(shared, alone.Encode("make it blue", first)));
  EXPECT_LT(with_shared, EditStage::Operators()) << "the vision tower ran again";
  EXPECT_TRUE(at::equal(other, EditStage().Encode("make it blue", second)));
  EXPECT_FALSE(at::equal(shared, other));
}

}  // namespace
}  // namespace tessera::models
