// Runs the cases of adapters: the effect of a file on the weights, the model's output with one adapter or a sum of
// several, and files that must be refused.
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/adapters/adapter.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/text_encoders/text_encoder.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/golden_runner/mesh_pass.h"
#include "tests/golden_runner/model_under_test.h"
#include "tests/golden_runner/on_ranks.h"

namespace tessera::golden {
namespace {

// A text encoder that supports adapters, with its weights.
struct Encoder {
  explicit Encoder(at::ScalarType dtype) : table(dtype, at::kCPU) {}
  models::ParamTable table;
  models::TextEncoderConfig config;
  std::unique_ptr<models::TextEncoder> model;
};

// The parts of a pipeline that support adapters, in one precision and for one rank.
struct Parts {
  std::unique_ptr<ModelUnderTest> transformer;
  std::map<std::string, std::unique_ptr<Encoder>> encoders;  // by component
  models::AdaptableModel adaptable;
  models::AdapterPlace place;
};

absl::Status OpenEncoders(const models::ModelFolder& folder, Parts& parts) {
  for (const auto& [component, named] : folder.components()) {
    if (!named.class_name.starts_with("CLIPTextModel")) continue;
    const std::string path = *folder.ComponentPath(component);
    auto encoder = std::make_unique<Encoder>(parts.place.dtype);
    const auto parse = [&](base::ConfigReader& reader) { return models::ReadTextEncoder(named.class_name, reader); };
    auto opened = OpenComponent(
        path, path + "/config.json", parse,
        [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); }, encoder->config,
        encoder->table);
    if (!opened.ok()) return opened.status();
    encoder->model = *std::move(opened);
    parts.adaptable.components[component] = encoder->table.products();
    parts.encoders[component] = std::move(encoder);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Parts>> Open(const Case& test_case, at::ScalarType dtype,
                                            models::WeightShare share = {}) {
  ASSIGN_OR_RETURN(const models::ModelFolder folder, OpenPipeline(test_case, test_case.Text("folder")));
  ASSIGN_OR_RETURN(const std::string transformer, folder.ComponentPath("transformer"));
  auto parts = std::make_unique<Parts>();
  parts->place = {.dtype = dtype, .device = test_case.device, .tensor = share.tensor};
  ASSIGN_OR_RETURN(parts->transformer, OpenModel(folder.components().at("transformer").class_name, transformer,
                                                 transformer + "/config.json", dtype, test_case.device, share));
  const std::string pipeline = test_case.Text("pipeline");
  parts->adaptable.originals = pipeline.starts_with("Flux2")              ? models::OriginalNames::kFlux2
                               : pipeline.starts_with("Flux")             ? models::OriginalNames::kFlux
                               : pipeline.starts_with("StableDiffusion3") ? models::OriginalNames::kSd3
                               : pipeline.starts_with("ZImage")           ? models::OriginalNames::kZImage
                               : pipeline.starts_with("QwenImage")        ? models::OriginalNames::kQwenImage
                                                                          : models::OriginalNames::kNone;
  parts->adaptable.components["transformer"] = parts->transformer->table.products();
  RETURN_IF_ERROR(OpenEncoders(folder, *parts));
  return parts;
}

absl::StatusOr<std::vector<models::Adapter>> ReadAdapters(const Case& test_case, const Parts& parts) {
  std::vector<models::Adapter> adapters;
  if (const base::Json* files = test_case.arguments.Find("adapters"); files != nullptr) {
    for (const base::Json& file : files->items()) {
      ASSIGN_OR_RETURN(models::Adapter adapter,
                       models::ReadAdapter(test_case.Path(*file.AsString()), parts.adaptable, parts.place));
      adapters.push_back(std::move(adapter));
    }
    return adapters;
  }
  ASSIGN_OR_RETURN(models::Adapter adapter,
                   models::ReadAdapter(test_case.Path(test_case.Text("adapter")), parts.adaptable, parts.place));
  adapters.push_back(std::move(adapter));
  return adapters;
}

std::vector<double> Numbers(const Case& test_case, const char* argument) {
  std::vector<double> numbers;
  if (const base::Json* list = test_case.arguments.Find(argument); list != nullptr) {
    for (const base::Json& item : list->items()) numbers.push_back(item.AsNumber().value_or(0));
  }
  return numbers;
}

// A sum of adapters: the name of the golden output with it, and the scales of the adapters.
struct Wanted {
  std::string name;
  std::vector<double> scales;
};

std::vector<Wanted> WantedOf(const Case& test_case) {
  if (test_case.kind == "adapter_sum") {
    return {{"base", {0, 0, 0}}, {"together", Numbers(test_case, "scales")}};
  }
  std::vector<Wanted> wanted = {{"base", {0}}};
  for (const double scale : Numbers(test_case, "scales")) wanted.push_back({absl::StrCat("scale_", scale), {scale}});
  return wanted;
}

models::SharedAdapters SumOf(const std::vector<models::Adapter>& adapters, const std::vector<double>& scales) {
  std::vector<models::ScaledAdapter> scaled;
  for (size_t i = 0; i < adapters.size(); ++i) scaled.push_back({.adapter = adapters[i], .scale = scales[i]});
  return models::AddAdapters(scaled);
}

// Returns the norm, two weighted sums and the largest value, as recorded in the goldens.
at::Tensor Fingerprint(const at::Tensor& delta) {
  const at::Tensor flat = delta.flatten(), j = at::arange(flat.numel(), at::kDouble);
  return at::stack(
      {flat.norm(), (flat * at::cos(j * 0.01)).sum(), (flat * at::cos(j * 0.0371 + 1)).sum(), flat.abs().max()});
}

// Compares which modules the file changes, and by how much.
void CompareDeltas(const models::Adapter& adapter, const Tensors& gold, double tolerance, Report& report) {
  size_t modules = 0, expected = 0;
  for (const auto& [name, tensor] : gold) expected += name.starts_with("fingerprint.") ? 1 : 0;
  for (const auto& [component, factors] : adapter.components) {
    for (const auto& [module, f] : factors) {
      ++modules;
      const std::string name = absl::StrCat(component, ".", module);
      const at::Tensor delta = at::matmul(f.b, f.a).to(at::kCPU) * f.scale;
      const auto fingerprint = gold.find("fingerprint." + name);
      report.Add("fingerprint." + name,
                 fingerprint == gold.end() ? 1 : RelativeError(Fingerprint(delta), fingerprint->second), tolerance);
      if (const auto whole = gold.find("delta." + name); whole != gold.end()) {
        report.Add("delta." + name, RelativeError(delta, whole->second), tolerance);
      }
    }
  }
  report.Add("number of modules", modules == expected ? 0 : 1, 0);
}

void CompareTexts(const Parts& parts, const std::vector<models::Adapter>& adapters, const Wanted& wanted,
                  const std::string& precision, const Tensors& gold, double tolerance, Report& report) {
  const models::SharedAdapters sum = SumOf(adapters, wanted.scales);
  for (const auto& [component, encoder] : parts.encoders) {
    const std::string prefix = absl::StrCat("text.", component, ".");
    const auto ids = gold.find(prefix + "input_ids");
    if (ids == gold.end()) continue;
    OneRank rank;
    const parallel::ForwardContext context{.attention = rank.attention,
                                           .tensor = rank.group,
                                           .world = rank.group,
                                           .adapters = models::AdaptersOf(sum, component)};
    const auto compare = [&](const char* what, const at::Tensor& actual) {
      const auto expected = gold.find(absl::StrCat(prefix, precision, ".", wanted.name, ".", what));
      if (expected != gold.end()) report.Add(expected->first, RelativeError(actual, expected->second), tolerance);
    };
    compare("pooled", encoder->model->Forward({.ids = ids->second}, context).pooled);
    compare("penultimate", encoder->model->Forward({.ids = ids->second, .states = {-2}}, context).hidden);
  }
}

// Compares everything that one precision of the case records, on this rank.
absl::StatusOr<Report> RunPrecision(const Case& test_case, const std::string& precision, const Tensors& gold,
                                    const Tensors& inputs, const RankPlace& place) {
  const c10::InferenceMode no_gradients;
  const bool fp64 = precision == "f64";
  const double tolerance = test_case.Tolerance(fp64 ? "fp64" : "fp32");
  ASSIGN_OR_RETURN(const std::unique_ptr<Parts> parts, Open(test_case, fp64 ? at::kDouble : at::kFloat, place.share));
  ASSIGN_OR_RETURN(const std::vector<models::Adapter> adapters, ReadAdapters(test_case, *parts));
  Report report;
  const bool alone = place.groups.world.size() == 1;
  if (fp64 && alone && test_case.kind == "adapter") CompareDeltas(adapters[0], gold, tolerance, report);
  const ModelUnderTest& under_test = *parts->transformer;
  for (const Wanted& wanted : WantedOf(test_case)) {
    const auto expected = gold.find(absl::StrCat(precision, ".", wanted.name));
    if (expected == gold.end()) continue;
    const models::TransformerInput input = under_test.input(OnDevice(inputs, test_case.device));
    const at::Tensor head = RunOnMesh(*under_test.model, input, place, SumOf(adapters, wanted.scales));
    report.Add(expected->first, RelativeError(under_test.output(head, input.grid), expected->second), tolerance);
    if (alone) {
      CompareTexts(*parts, adapters, wanted, precision, gold, fp64 ? tolerance : test_case.Tolerance("fp32_text"),
                   report);
    }
  }
  return report;
}

// The kinds of adapters that a server may refuse by name, and what the message must say.
std::string OptionalName(const std::string& optional) {
  if (optional == "dora") return "DoRA";
  if (optional == "lokr") return "LoKr";
  return optional == "bias" ? "biases" : "LoRA with";
}

}  // namespace

absl::StatusOr<Report> RunAdapter(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const Tensors inputs, ReadTensors(test_case.Path(test_case.Text("inputs"))));
  ASSIGN_OR_RETURN(const std::unique_ptr<Parts> whole, Open(test_case, at::kFloat));
  Report report;
  const absl::StatusOr<std::vector<models::Adapter>> adapters = ReadAdapters(test_case, *whole);
  if (!adapters.ok()) return RefusedByName(test_case, adapters.status());
  for (const char* precision : {"f64", "f32"}) {
    const absl::StatusOr<Report> ranks =
        RunOnRanks(test_case.layout, whole->transformer->heads, whole->transformer->model->num_blocks(),
                   [&](const RankPlace& place) { return RunPrecision(test_case, precision, gold, inputs, place); });
    if (!ranks.ok()) return ranks.status();
    report.Add("", *ranks);
  }
  return report;
}

absl::StatusOr<Report> RefusedByName(const Case& test_case, const absl::Status& error) {
  if (test_case.optional.empty() || models::FaultOf(error) != models::AdapterFault::kUnsupportedKind) return error;
  Report report;
  const bool named = error.message().find(OptionalName(test_case.optional)) != absl::string_view::npos;
  report.Add("refused by name", named ? 0 : 1, 0);
  return report;
}

absl::StatusOr<Report> RunRefusedAdapter(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  ASSIGN_OR_RETURN(const std::unique_ptr<Parts> parts, Open(test_case, at::kFloat));
  const absl::StatusOr<models::Adapter> adapter =
      models::ReadAdapter(test_case.Path(test_case.file), parts->adaptable, parts->place);
  if (adapter.ok()) return absl::InternalError("the file was read");
  const std::optional<models::AdapterFault> fault = models::FaultOf(adapter.status());
  const std::string message(adapter.status().message()), reason = test_case.Text("reason");
  if (!fault) return absl::InternalError(absl::StrCat("an error without a reason: ", adapter.status().ToString()));
  Report report;
  const std::string found = base::EnumName(*fault);
  report.Add(absl::StrCat("reason ", found, " where ", reason, " is right: ", message), found == reason ? 0 : 1, 0);
  if (const base::Json* names = test_case.arguments.Find("names"); names != nullptr) {
    for (const base::Json& name : names->items()) {
      const bool named = message.find(*name.AsString()) != std::string::npos;
      report.Add(absl::StrCat("names ", *name.AsString(), ": ", message), named ? 0 : 1, 0);
    }
  }
  return report;
}

}  // namespace tessera::golden
