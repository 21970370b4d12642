// Describes a model with fake workers that may refuse, die or stop.
#include "server/serving/group_describer.h"

#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "tests/front/fake_worker_test.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GroupDescriberTest : public FakeWorkerTest {
 protected:
  server::ServedGroupOptions Group() const { return {.name = "tiny", .load = {.model = model_}}; }
  // Returns the error of describing the group's model.
  absl::Status Refusal(const server::ServedGroupOptions& group) { return describer_.Describe(group).status(); }

  server::GroupDescriber describer_{{}, "owner"};
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(GroupDescriberTest, SaysWhatTheModelIsAndHowTheGroupIsLaidOut) {
  server::ServedGroupOptions group = Group();
  group.load.model = "elsewhere";
  group.find_model = [this] { return model_; };
  group.layout.layout = "cfg=2";
  const absl::StatusOr<server::DescribedGroup> described = describer_.Describe(group);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->options.load.model, model_) << "where it was found";
  EXPECT_EQ(described->model.default_sampler, "dpm++");
  EXPECT_EQ(parallel::LayoutText(described->layout), "cfg=2");
}

TEST_F(GroupDescriberTest, NamesTheModelThatCannotBeFoundOrRead) {
  server::ServedGroupOptions group = Group();
  group.find_model = []() -> absl::StatusOr<std::string> { return absl::NotFoundError("the hub has none"); };
  EXPECT_EQ(Refusal(group), absl::NotFoundError("model tiny: the hub has none"));
  group = Group();
  group.load.model = folder_ / "missing";
  EXPECT_FALSE(Refusal(group).ok());
  EXPECT_THAT(Text(Refusal(group)), StartsWith("model tiny: "));
}

TEST_F(GroupDescriberTest, RefusesALayoutThatTheModelCannotHave) {
  server::ServedGroupOptions group = Group();
  group.layout.layout = "ulysses=3";  // the model has four heads
  const absl::Status refusal = Refusal(group);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument) << refusal;
  EXPECT_THAT(Text(refusal), StartsWith("model tiny: "));
}

TEST_F(GroupDescriberTest, AsksANewWorkerAfterOneHasDied) {
  Order("describe=die");
  const absl::Status refusal = Refusal(Group());
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnavailable) << refusal;
  EXPECT_THAT(Text(refusal), AllOf(StartsWith("model tiny: "), HasSubstr("fake worker: die in describe")));
  Order("");
  EXPECT_EQ(Refusal(Group()), absl::OkStatus());
}

TEST_F(GroupDescriberTest, EndsWhatIsUnderWayAndWhateverWouldBeginLater) {
  Order(absl::StrCat("describe=hang faults=", faults()));
  std::future<absl::Status> refusal = std::async(std::launch::async, [this] { return Refusal(Group()); });
  WaitForFault();
  describer_.Stop();
  ASSERT_EQ(refusal.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(refusal.get().code(), absl::StatusCode::kUnavailable);
  Order("");
  EXPECT_EQ(Refusal(Group()).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tessera
