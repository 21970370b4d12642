#include "tests/golden_runner/golden_case.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "models/loading/weight_loader.h"
#include "models/weights/safetensors.h"

namespace tessera::golden {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Kind {
  const char* name;
  absl::StatusOr<Report> (*run)(const Case&);
};
constexpr Kind kKinds[] = {
    {"tokenizer", RunTokenizer},
    {"text_encoder", RunTextEncoder},
    {"vision_encoder", RunVisionEncoder},
    {"transformer", RunTransformer},
    {"gradient", RunGradient},
    {"legacy_config", RunLegacyConfig},
    {"vae", RunAutoencoder},
    {"vae_encode", RunEncodedImage},
    {"pipeline", RunPipeline},
    {"transformer_kv", RunKeptKeys},
    {"function", RunFunction},
    {"image_function", RunImageFunction},
    {"scheduler", RunScheduler},
    {"adapter", RunAdapter},
    {"adapter_sum", RunAdapter},
    {"adapter_refused", RunRefusedAdapter},
    {"adapter_trajectory", RunPipeline},
    {"image_pipeline", RunPipeline},
    {"training_loss", RunTrainingLoss},
    {"training_steps", RunTrainingSteps},
    {"lora", RunTrainedAdapter},
    {"density", RunDensity},
    {"checkpoint", RunStoredWeights},
    {"quantized_folder", RunStoredWeights},
    {"refused", RunRefusedFile},
    {"keymap", RunKeyMap},
    {"blocks", RunBlocks},
    {"codes", RunCodes},
};

// Returns the cases of a folder without a manifest: each subfolder that contains an ids.json is a saved tokenizer.
absl::StatusOr<std::vector<Case>> SavedTokenizers(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    if (std::filesystem::exists(entry.path() / "ids.json")) names.push_back(entry.path().filename().string());
  }
  if (names.empty()) return absl::NotFoundError("there is neither a cases.json nor a folder with an ids.json");
  std::sort(names.begin(), names.end());
  std::vector<Case> cases;
  for (const std::string& name : names) {
    const absl::StatusOr<base::Json> arguments =
        base::ParseJson(absl::StrCat("{\"folder\": ", base::Quote(name), "}"), name);
    if (!arguments.ok()) return arguments.status();
    cases.push_back({.root = root, .file = name + "/ids.json", .kind = "tokenizer", .arguments = *arguments});
  }
  return cases;
}

// Sets `optional` of every case. A case without that argument has the one of the case that describes one of its
// adapters.
void SetOptionalKinds(std::vector<Case>& cases) {
  std::map<std::string, std::string> by_adapter;
  for (Case& test_case : cases) {
    test_case.optional = test_case.Text("optional");
    if (!test_case.optional.empty()) by_adapter[test_case.Text("adapter")] = test_case.optional;
  }
  for (Case& test_case : cases) {
    const base::Json* adapters = test_case.arguments.Find("adapters");
    if (adapters == nullptr || !test_case.optional.empty()) continue;
    for (const base::Json& file : adapters->items()) {
      const auto found = by_adapter.find(file.AsString() ? *file.AsString() : "");
      if (found != by_adapter.end()) test_case.optional = found->second;
    }
  }
}

}  // namespace

std::string Case::Text(const char* argument) const {
  const base::Json* value = arguments.Find(argument);
  const std::string* text = value ? value->AsString() : nullptr;
  return text ? *text : "";
}

int64_t Case::Int(const char* argument, int64_t fallback) const {
  const base::Json* value = arguments.Find(argument);
  return value ? value->AsInt().value_or(fallback) : fallback;
}

double Case::Number(const char* argument, double fallback) const {
  const base::Json* value = arguments.Find(argument);
  return value ? value->AsNumber().value_or(fallback) : fallback;
}

bool Case::Bool(const char* argument, bool fallback) const {
  const base::Json* value = arguments.Find(argument);
  return value ? value->AsBool().value_or(fallback) : fallback;
}

double Case::Tolerance(const char* name) const {
  const base::Json* value = tolerance.Find(name);
  return value ? value->AsNumber().value_or(0) : 0;
}

absl::StatusOr<std::vector<Case>> ReadCases(const std::string& root) {
  const absl::StatusOr<std::string> text = base::ReadWholeFile(root + "/cases.json", "cases.json", base::kMaxJsonBytes);
  if (absl::IsNotFound(text.status())) return SavedTokenizers(root);
  if (!text.ok()) return text.status();
  const absl::StatusOr<base::Json> manifest = base::ParseJson(*text, "cases.json");
  if (!manifest.ok()) return manifest.status();
  const base::Json* entries = manifest->Find("cases");
  const base::Json* folders = manifest->Find("folders");
  if (entries == nullptr || entries->items().empty()) return absl::InvalidArgumentError("cases.json has no cases");
  std::vector<Case> cases;
  for (const base::Json& entry : entries->items()) {
    const base::Json* file = entry.Find("file");
    const base::Json* kind = entry.Find("kind");
    if (!file || !file->AsString() || !kind || !kind->AsString()) {
      return absl::InvalidArgumentError("cases.json: a case without file or kind");
    }
    Case test_case{.root = root, .file = *file->AsString(), .kind = *kind->AsString()};
    const base::Json* notes = entry.Find("notes");
    if (notes != nullptr && notes->AsString()) test_case.notes = *notes->AsString();
    if (const base::Json* arguments = entry.Find("arguments")) test_case.arguments = *arguments;
    if (const base::Json* tolerance = entry.Find("tolerance")) test_case.tolerance = *tolerance;
    if (folders != nullptr) test_case.folders = *folders;
    cases.push_back(std::move(test_case));
  }
  SetOptionalKinds(cases);
  return cases;
}

absl::StatusOr<models::ModelFolder> OpenPipeline(const Case& test_case, const std::string& folder) {
  models::ComponentFolders elsewhere;
  const base::Json* made_of = test_case.folders.Find(folder);
  for (const base::Json* list : {made_of ? made_of->Find("parts") : nullptr, test_case.arguments.Find("tokenizers")}) {
    if (list == nullptr) continue;
    for (const base::JsonMember& part : list->members()) {
      const std::string* path = part.value.AsString();
      if (path == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("cases.json: the folder of ", base::Quote(part.key), " is not a text"));
      }
      elsewhere[part.key] = test_case.Path(*path);
    }
  }
  return models::ModelFolder::Open(test_case.Path(folder), elsewhere);
}

absl::StatusOr<Tensors> ReadTensors(const std::string& path) {
  const absl::StatusOr<models::SafetensorsFile> file = models::SafetensorsFile::Open(path, path);
  if (!file.ok()) return file.status();
  Tensors tensors;
  for (const models::StoredTensor& stored : file->tensors()) {
    const std::optional<at::ScalarType> dtype = models::TorchType(stored.type);
    if (!dtype) return absl::InvalidArgumentError(absl::StrCat(path, ": the type of ", stored.name, " is unknown"));
    const at::Tensor tensor = at::empty(stored.shape, *dtype);
    RETURN_IF_ERROR(file->Read(stored, 0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}));
    tensors[stored.name] = tensor;
  }
  return tensors;
}

Tensors OnDevice(Tensors tensors, at::Device device) {
  for (auto& [name, tensor] : tensors) tensor = tensor.to(device);
  return tensors;
}

double AbsoluteError(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return kInfinity;
  if (expected.numel() == 0) return 0;
  const double error =
      (actual.to(at::kCPU, at::kDouble) - expected.to(at::kCPU, at::kDouble)).abs().max().item<double>();
  return std::isnan(error) ? kInfinity : error;
}

double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  const double error = AbsoluteError(actual, expected);
  if (error == 0) return 0;
  return error / std::max(expected.to(at::kDouble).abs().max().item<double>(), 1e-300);
}

void Report::Add(const std::string& what, double error, double tolerance) {
  const auto ratio = [](double e, double t) { return e == 0 ? 0 : t == 0 ? kInfinity : e / t; };
  if (comparisons_++ == 0 || ratio(error, tolerance) > ratio(error_, tolerance_)) {
    what_ = what;
    error_ = error;
    tolerance_ = tolerance;
  }
}

void Report::Add(const std::string& whose, const Report& other) {
  const int others = other.comparisons_ - 1;
  if (other.comparisons_ > 0) Add(whose + other.what_, other.error_, other.tolerance_);
  comparisons_ += std::max(others, 0);
}

absl::StatusOr<Report> RunCase(const Case& test_case) {
  for (const Kind& kind : kKinds) {
    if (test_case.kind != kind.name) continue;
    try {
      return kind.run(test_case);
    } catch (const c10::Error& error) {
      return absl::InternalError(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
  }
  return absl::UnimplementedError(absl::StrCat("cases of kind ", test_case.kind));
}

}  // namespace tessera::golden
