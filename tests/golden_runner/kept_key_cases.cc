// Runs the cases of models that keep the keys and values of their references over the steps of a job. This project
// computes them again in each step, which must give the recorded outputs of steps that read them, and the same keys and
// values in every step.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "parallel/qkv.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/golden_runner/mesh_pass.h"
#include "tests/golden_runner/model_under_test.h"

namespace tessera::golden {
namespace {

// The two passes of a case: the step that computes the keys and values, and a later one that the reference gives
// latents only.
struct RecordedPass {
  const char* output;   // name of what it returns, and of its latents in a later pass
  const char* latents;  // "in." names
  const char* timestep;
};
constexpr RecordedPass kPasses[] = {{"first", "in.latents", "in.timestep"}, {"later", "in.later", "in.later_timestep"}};

// The tensors of a pass as cases of transformers name them: the image first, then the references.
Tensors InputsOf(const Tensors& gold, const RecordedPass& pass) {
  Tensors inputs = {{"in.encoder_hidden_states", gold.at("in.encoder_hidden_states")},
                    {"in.timestep", gold.at(pass.timestep)},
                    {"in.hidden_states", at::cat({gold.at(pass.latents), gold.at("in.references")}, 1)},
                    {"in.img_ids", at::cat({gold.at("in.latent_ids"), gold.at("in.reference_ids")}, 1)}};
  if (const auto guidance = gold.find("in.guidance"); guidance != gold.end()) inputs.insert(*guidance);
  return inputs;
}

// Attention of one rank that keeps the keys and values of references, by the number of the attention.
class KeepingAttention final : public parallel::AttentionContext {
 public:
  at::Tensor Attend(int layer, const parallel::AttentionInput& input) override {
    if (input.keys == parallel::TokenRows::kReferences) kept_[layer] = parallel::QkvOf(input);
    return local_.Attend(layer, input);
  }
  const std::map<int, parallel::Qkv>& kept() const { return kept_; }

 private:
  parallel::LocalAttention local_;
  std::map<int, parallel::Qkv> kept_;
};

// Compares what each block keeps, where it was recorded.
void CompareKept(const ModelUnderTest& under_test, const Tensors& inputs, const Tensors& gold,
                 const std::string& precision, double tolerance, Report& report) {
  OneRank rank;
  KeepingAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = rank.group, .world = rank.group};
  models::RunTransformer(*under_test.model, under_test.input(inputs), context);
  report.Add("attentions of references", std::ssize(attention.kept()) == under_test.model->num_blocks() ? 0 : 1, 0);
  int block = 0;
  for (const auto& [layer, qkv] : attention.kept()) {
    std::string name = under_test.block_name(block++);
    if (name.starts_with("block.")) name.replace(0, 5, "double");
    for (const auto& [what, tensor] : {std::pair{".key", qkv.k}, {".value", qkv.v}}) {
      const auto recorded = gold.find(absl::StrCat(precision, name, what));
      if (recorded != gold.end()) report.Add(recorded->first, RelativeError(tensor, recorded->second), tolerance);
    }
  }
}

}  // namespace

absl::StatusOr<Report> RunKeptKeys(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const std::string folder = test_case.Path(test_case.Text("folder"));
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  Report report;
  for (const auto& [dtype, precision] : {std::pair{at::kFloat, "f32"}, {at::kDouble, "f64"}}) {
    const std::string prefix = absl::StrCat(precision, ".");
    const double tolerance = test_case.Tolerance(dtype == at::kFloat ? "fp32" : "fp64");
    const auto open = [&, dtype = dtype](models::WeightShare share) {
      return OpenModel(absl::StrCat(test_case.Text("class"), kIsolated), folder, folder + "/config.json", dtype,
                       test_case.device, std::move(share));
    };
    ASSIGN_OR_RETURN(const std::unique_ptr<ModelUnderTest> whole, open({}));
    const absl::StatusOr<Report> on_ranks = RunOnRanks(
        test_case.layout, whole->heads, whole->model->num_blocks(),
        [&](const RankPlace& place) -> absl::StatusOr<Report> {
          const c10::InferenceMode none;
          Report of_rank;
          ASSIGN_OR_RETURN(const std::unique_ptr<ModelUnderTest> part, open(place.share));
          for (const RecordedPass& pass : kPasses) {
            const models::TransformerInput input = part->input(OnDevice(InputsOf(gold, pass), test_case.device));
            const at::Tensor output = part->output(RunOnMesh(*part->model, input, place), input.grid);
            const at::Tensor& expected = gold.at(prefix + pass.output);
            of_rank.Add(prefix + pass.output, RelativeError(output, expected), tolerance);
          }
          return of_rank;
        });
    if (!on_ranks.ok()) return on_ranks.status();
    report.Add("", *on_ranks);
    if (test_case.layout.ranks() > 1) continue;
    for (const RecordedPass& pass : kPasses) {
      CompareKept(*whole, OnDevice(InputsOf(gold, pass), test_case.device), gold, prefix, tolerance, report);
    }
  }
  return report;
}

}  // namespace tessera::golden
