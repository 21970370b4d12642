// Runs the cases of transformers: a forward pass with its intermediate results, gradients, and configurations of other
// versions.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "models/text_encoders/text_encoder.h"
#include "runtime/denoising/mesh_forward.h"
#include "tests/golden_runner/block_state_bytes.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/golden_runner/mesh_pass.h"
#include "tests/golden_runner/model_under_test.h"
#include "tests/golden_runner/on_ranks.h"

namespace tessera::golden {
namespace {

std::string InputsOf(std::string file) {
  if (const size_t at = file.find(".f64."); at != std::string::npos) file.replace(at, 5, ".f32.");
  return file;
}

// Reads the tensors of a file, and adds the sizes of the pictures of its case, [b, pictures, 3], as "in.img_shapes" if
// they are among its arguments.
absl::StatusOr<Tensors> ReadInputs(const Case& test_case, const std::string& file) {
  ASSIGN_OR_RETURN(Tensors inputs, ReadTensors(test_case.Path(file)));
  ASSIGN_OR_RETURN(const std::vector<Case> cases, ReadCases(test_case.root));
  const auto own = std::ranges::find(cases, file, &Case::file);
  const base::Json* shapes = own == cases.end() ? nullptr : own->arguments.Find("img_shapes");
  if (shapes == nullptr) return inputs;
  inputs["in.img_shapes"] = PictureSizes(*shapes);
  return inputs;
}

// Runs the whole forward pass and converts the state to bytes and back after each block, as if every block were a
// pipeline stage.
at::Tensor RunInStages(const models::Transformer& model, const models::TransformerInput& input,
                       const parallel::ForwardContext& context) {
  const models::ForwardPass pass(model, input, context);
  std::string bytes = ToBytes(pass.Begin());
  const auto state = [&] {
    models::BlockState received = FromBytes(bytes);
    for (at::Tensor* tensor : {&received.image, &received.text}) {
      if (tensor->defined()) *tensor = tensor->to(input.patches.device());
    }
    for (auto& [block, skip] : received.skips) skip = skip.to(input.patches.device());
    return received;
  };
  for (int i = 0; i < model.num_blocks(); ++i) {
    models::BlockState received = state();
    model.Block(i, received, pass.ConditioningOf(i), context);
    bytes = ToBytes(received);
  }
  return model.Head(state(), pass.ConditioningOf(model.num_blocks()), context);
}

// Returns what the reference recorded for row `row` of `rows` passes, without the padding of the batch; nothing if it
// recorded none. With one pass, it is all that was recorded.
std::optional<at::Tensor> Recorded(const Tensors& gold, const std::string& name, size_t row, size_t rows,
                                   const at::Tensor& like) {
  if (rows > 1) {
    if (const auto own = gold.find(absl::StrCat("out.", name, ".", row)); own != gold.end()) return own->second;
  }
  auto found = gold.find("out." + name);
  if (found == gold.end()) found = gold.find(name);
  if (found == gold.end()) return std::nullopt;
  if (rows == 1) return found->second;
  if (found->second.size(0) != static_cast<int64_t>(rows)) return std::nullopt;  // the rows one after another
  at::Tensor own = found->second.narrow(0, static_cast<int64_t>(row), 1);
  if (own.dim() == 3 && own.size(1) > like.size(1)) own = own.narrow(1, 0, like.size(1));
  return own;
}

// Compares only the output for the image, on the ranks of the case's layout.
absl::StatusOr<Report> RunTransformerOnRanks(const Case& test_case, const ModelUnderTest& whole, const Tensors& gold,
                                             const Tensors& inputs) {
  const std::string folder = test_case.Path(test_case.Text("folder"));
  const bool fp64 = whole.dtype == at::kDouble;
  return RunOnRanks(test_case.layout, whole.heads, whole.model->num_blocks(), [&](const RankPlace& place) {
    const c10::InferenceMode no_gradients;
    Report report;
    const absl::StatusOr<std::unique_ptr<ModelUnderTest>> part =
        OpenModel(test_case.Text("class"), folder, folder + "/config.json", whole.dtype, test_case.device, place.share);
    if (!part.ok()) return absl::StatusOr<Report>(part.status());
    const std::vector<Tensors> rows = RowsOf(**part, OnDevice(inputs, test_case.device));
    for (size_t row = 0; row < rows.size(); ++row) {
      const models::TransformerInput input = (*part)->input(rows[row]);
      const at::Tensor output = (*part)->output(RunOnMesh(*(*part)->model, input, place), input.grid);
      std::optional<at::Tensor> expected = Recorded(gold, "output", row, rows.size(), output);
      if (!expected) return absl::StatusOr<Report>(absl::NotFoundError("the case records no output"));
      if (!input.references.empty()) *expected = expected->narrow(1, 0, output.size(1));
      report.Add("output", RelativeError(output.reshape(expected->sizes()), *expected),
                 test_case.Tolerance(fp64 ? "fp64" : "fp32"));
    }
    return absl::StatusOr<Report>(report);
  });
}

// Runs a pass and hands everything that the reference may have recorded to `compare`.
void ComparePass(const ModelUnderTest& under_test, const Tensors& gold, const Tensors& inputs,
                 const std::function<void(const std::string& name, const at::Tensor& actual)>& compare,
                 Report& report) {
  OneRank rank;
  const models::Transformer& model = *under_test.model;
  const models::TransformerInput input = under_test.input(inputs);
  const int64_t references = models::TokensOf(input.reference_grids);
  const models::ForwardPass pass(model, input, rank.context);
  compare(under_test.embedding_name, pass.step().vector);
  for (const auto& [name, value] : under_test.extras(input, gold, pass)) compare(name, value);
  const auto compare_states = [&](int block, const models::BlockState& state) {
    if (under_test.states) {
      for (const auto& [name, value] : under_test.states(block, state, references)) compare(name, value);
      return;
    }
    compare(block < 0 ? "patch_embed" : under_test.block_name(block) + ".hidden", state.image);
    if (state.text.defined()) {
      compare(block < 0 ? "context" : under_test.block_name(block) + ".context", state.text);
    }
  };
  models::BlockState state = pass.Begin();
  compare_states(-1, state);
  for (int i = 0; i < model.num_blocks(); ++i) {
    model.Block(i, state, pass.ConditioningOf(i), rank.context);
    compare_states(i, state);
  }
  const at::Tensor head = HeadOf(model, pass, state, references, rank.context);
  compare("proj_out", head);
  compare("output", under_test.output(head, input.grid));
  const at::Tensor of_image = references == 0 ? head : HeadOf(model, pass, state, 0, rank.context);
  report.Add("in stages, bit for bit", at::equal(RunInStages(model, input, rank.context), of_image) ? 0 : 1, 0);
}

}  // namespace

at::Tensor RunOnMesh(const models::Transformer& transformer, const models::TransformerInput& input,
                     const RankPlace& place, models::SharedAdapters adapters) {
  const parallel::RankGroups& groups = place.groups;
  parallel::LocalAttention no_attention;
  const parallel::ForwardContext plain{.attention = no_attention,
                                       .tensor = groups.tensor,
                                       .world = groups.world,
                                       .adapters = models::AdaptersOf(adapters, "transformer")};
  const models::PromptState prompt = transformer.Read(input.text, input.extras, plain);
  const models::StepEmbedding step = transformer.EmbedStep(input.timestep, prompt.vector, plain);
  at::Tensor text = prompt.text;
  for (const at::Tensor& reference : input.references) {
    text = at::cat({text, transformer.Embed(reference, {}, plain)}, 1);
  }
  runtime::ForwardRows rows{
      .grid = input.grid,
      .positions = transformer.Place(input.grid, models::JointTokens(transformer, prompt.text), input.patches.device()),
      .text = text,
      .references = input.reference_grids,
      .text_bias = {},
      .patches = input.patches.narrow(1, 0, 0),
      .skipped_blocks = {},
      .adapters = adapters};
  if (input.text_mask.defined()) {
    rows.text_bias = models::MaskedTextBias(input.text_mask, input.patches.scalar_type());
  }
  const auto modulations = [&](int block) { return transformer.Modulate(block, step, plain).split(1); };
  return runtime::ForwardOnMesh(transformer, std::move(rows), modulations, input.patches, groups, place.stage_bounds);
}

absl::StatusOr<Report> RunTransformer(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const bool fp64 = test_case.Text("precision") == "f64";
  const std::string folder = test_case.Path(test_case.Text("folder"));
  const absl::StatusOr<std::unique_ptr<ModelUnderTest>> opened = OpenModel(
      test_case.Text("class"), folder, folder + "/config.json", fp64 ? at::kDouble : at::kFloat, test_case.device);
  if (!opened.ok()) return opened.status();
  const ModelUnderTest& under_test = **opened;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const absl::StatusOr<Tensors> inputs = ReadInputs(test_case, InputsOf(test_case.file));
  if (!inputs.ok()) return inputs.status();

  if (test_case.layout.ranks() > 1) return RunTransformerOnRanks(test_case, under_test, *gold, *inputs);
  Report report;
  const std::vector<Tensors> rows = RowsOf(under_test, OnDevice(*inputs, test_case.device));
  for (size_t row = 0; row < rows.size(); ++row) {
    ComparePass(
        under_test, *gold, rows[row],
        [&](const std::string& name, const at::Tensor& actual) {
          const std::optional<at::Tensor> expected = Recorded(*gold, name, row, rows.size(), actual);
          if (!expected) return;
          const char* tolerance = fp64 ? "fp64" : name.starts_with("time_proj") ? "fp32_time_proj" : "fp32";
          report.Add(name, RelativeError(actual.reshape(expected->sizes()), *expected), test_case.Tolerance(tolerance));
        },
        report);
  }
  return report;
}

absl::StatusOr<Report> RunGradient(const Case& test_case) {
  const absl::StatusOr<std::string> text =
      base::ReadWholeFile(test_case.Path(test_case.file), test_case.file, base::kMaxJsonBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<base::Json> gold = base::ParseJson(*text, test_case.file);
  if (!gold.ok()) return gold.status();
  const std::string folder = test_case.Path(test_case.Text("folder"));
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromFile(folder + "/config.json", "config.json");
  if (!reader.ok()) return reader.status();
  const absl::StatusOr<std::unique_ptr<ModelUnderTest>> opened =
      OpenModel(reader->String("_class_name", ""), folder, folder + "/config.json", at::kDouble, test_case.device);
  if (!opened.ok()) return opened.status();
  const ModelUnderTest& under_test = **opened;
  const absl::StatusOr<Tensors> inputs = ReadInputs(test_case, test_case.Text("inputs"));
  if (!inputs.ok()) return inputs.status();
  // Only the parameters that the reference trains. A table of positions in the file is not one of them.
  const base::Json* expected = gold->Find("parameters");
  std::vector<models::Param> trained;
  for (const models::Param& param : under_test.table.params()) {
    if (expected->Find(param.spec.name) == nullptr && param.spec.buffer) continue;
    at::Tensor(param.storage).requires_grad_(true);
    trained.push_back(param);
  }

  const at::Tensor output = OutputOf(under_test, OnDevice(*inputs, test_case.device));
  const at::Tensor loss = (output - Wave(output, 0.37)).square().mean();
  loss.backward();

  // Relative to the model's largest gradient. The golden file states this as the achievable error.
  constexpr double kTolerance = 1e-9;
  Report report;
  const double expected_loss = gold->Find("loss")->AsNumber().value_or(0);
  report.Add("loss", std::abs(loss.item<double>() - expected_loss) / expected_loss, kTolerance);
  double largest = 0;
  for (const base::JsonMember& row : expected->members())
    largest = std::max(largest, row.value.items()[0].AsNumber().value_or(0));
  std::set<std::string> unused;  // parameters that the output does not depend on
  if (const base::Json* names = gold->Find("without_gradient"); names != nullptr) {
    for (const base::Json& name : names->items()) unused.insert(name.AsString() ? *name.AsString() : "");
  }
  report.Add("number of parameters", expected->members().size() + unused.size() == trained.size() ? 0 : 1, 0);
  for (const models::Param& param : trained) {
    // A parameter that is not used has no gradient.
    const at::Tensor whole = param.storage.grad();
    const at::Tensor gradient = whole.defined() ? param.View(whole) : at::zeros_like(param.Value());
    const base::Json* row = expected->Find(param.spec.name);
    if (row == nullptr && unused.contains(param.spec.name)) {
      report.Add(param.spec.name, gradient.abs().max().item<double>() / largest, kTolerance);
      continue;
    }
    if (row == nullptr) return absl::NotFoundError(absl::StrCat("no gradient of ", param.spec.name, " in the golden"));
    const double norm = gradient.norm().item<double>(),
                 projection = (gradient * Wave(gradient, 0.01)).sum().item<double>();
    report.Add(param.spec.name, std::abs(norm - row->items()[0].AsNumber().value_or(0)) / largest, kTolerance);
    report.Add(param.spec.name, std::abs(projection - row->items()[1].AsNumber().value_or(0)) / largest, kTolerance);
  }
  return report;
}

absl::StatusOr<Report> RunLegacyConfig(const Case& test_case) {
  if (models::IsTextEncoder(test_case.Text("class"))) return RunLegacyTextEncoder(test_case);
  const c10::InferenceMode no_gradients;
  const std::string folder = test_case.Path(test_case.Text("folder"));
  absl::StatusOr<at::Tensor> outputs[2];
  OneRank rank;
  const std::string configs[] = {folder + "/config.json", test_case.Path(test_case.file)};
  for (size_t i = 0; i < 2; ++i) {
    const absl::StatusOr<std::unique_ptr<ModelUnderTest>> model =
        OpenModel(test_case.Text("class"), folder, configs[i], at::kDouble, test_case.device);
    if (!model.ok()) return model.status();
    outputs[i] = tessera::models::RunTransformer(*(*model)->model, (*model)->made_up_input(), rank.context);
  }
  Report report;
  report.Add("output", AbsoluteError(*outputs[1], *outputs[0]), 0);
  return report;
}

}  // namespace tessera::golden
