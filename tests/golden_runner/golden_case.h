// Reads a folder of golden cases (see tests/golden/README.md) and runs them.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/weights/model_folder.h"
#include "parallel/plan/layout.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::golden {

// One entry of cases.json.
struct Case {
  std::string root;  // the folder
  std::string file;  // relative to `root`
  std::string kind;
  std::string notes;  // what the manifest says about the case; may be empty
  base::Json arguments;
  base::Json tolerance;
  base::Json folders;             // of the whole manifest; see OpenPipeline
  std::string optional;           // the kind of adapter that the golden allows to be refused by name; "" if none
  at::Device device = at::kCPU;   // for models; their results are compared on the host
  parallel::Layout layout;        // its ranks are threads
  bool against_one_rank = false;  // trajectories on a layout are also compared in fp64 with those of one rank

  std::string Path(const std::string& relative) const { return root + "/" + relative; }
  std::string Text(const char* argument) const;  // "" if absent
  int64_t Int(const char* argument, int64_t fallback) const;
  double Number(const char* argument, double fallback) const;
  bool Bool(const char* argument, bool fallback) const;
  double Tolerance(const char* name) const;  // 0, that is exact, if the manifest gives none
};

// Returns the cases of cases.json. Without that file, each subfolder that contains an ids.json is a case of kind
// tokenizer.
absl::StatusOr<std::vector<Case>> ReadCases(const std::string& root);

// Opens a pipeline's folder, which is relative to the case's root. If the manifest's `folders` lists it, the components
// in its `parts` are read from the folders given there. The case's `tokenizers` replace the pipeline's in the same way.
absl::StatusOr<models::ModelFolder> OpenPipeline(const Case& test_case, const std::string& folder);

// The tensors of a safetensors file, with their stored dtypes.
using Tensors = std::map<std::string, at::Tensor>;
absl::StatusOr<Tensors> ReadTensors(const std::string& path);
Tensors OnDevice(Tensors tensors, at::Device device);

// Returns the largest absolute difference, and the same relative to the largest absolute expected value. Infinity if
// shapes differ or a value is not finite.
double AbsoluteError(const at::Tensor& actual, const at::Tensor& expected);
double RelativeError(const at::Tensor& actual, const at::Tensor& expected);

// Collects the comparisons of one case and keeps the one with the largest error relative to its tolerance.
class Report {
 public:
  void Add(const std::string& what, double error, double tolerance);
  // Adds another report's worst comparison and its count.
  void Add(const std::string& whose, const Report& other);

  int comparisons() const { return comparisons_; }
  bool passed() const { return comparisons_ > 0 && error_ <= tolerance_; }
  double error() const { return error_; }
  double tolerance() const { return tolerance_; }
  const std::string& what() const { return what_; }

 private:
  int comparisons_ = 0;
  double error_ = 0, tolerance_ = 0;
  std::string what_;
};

// Runs one case. Returns Unimplemented if its family or kind is not built. Any other error, or an exception, is a
// failure.
absl::StatusOr<Report> RunCase(const Case& test_case);

// Runs the program tessera-golden (see golden_main.cc).
int Main(int argc, char** argv);

// Each of these functions runs one kind of case and has a separate file.
absl::StatusOr<Report> RunTokenizer(const Case& test_case);
absl::StatusOr<Report> RunTextEncoder(const Case& test_case);
// A case of a text encoder that records states in fp64 of padded texts, of which all rows count.
absl::StatusOr<Report> RunWideTextEncoder(const Case& test_case, const Tensors& gold);
absl::StatusOr<Report> RunVisionEncoder(const Case& test_case);
absl::StatusOr<Report> RunTokenizerOfPictures(const Case& test_case);    // of prompts that hold pictures
absl::StatusOr<Report> RunTextEncoderOfPictures(const Case& test_case);  // of prompts that hold pictures
absl::StatusOr<Report> RunTransformer(const Case& test_case);
absl::StatusOr<Report> RunKeptKeys(const Case& test_case);
absl::StatusOr<Report> RunGradient(const Case& test_case);
absl::StatusOr<Report> RunLegacyConfig(const Case& test_case);       // of transformers
absl::StatusOr<Report> RunLegacyTextEncoder(const Case& test_case);  // like RunLegacyConfig
absl::StatusOr<Report> RunAutoencoder(const Case& test_case);
absl::StatusOr<Report> RunEncodedImage(const Case& test_case);
absl::StatusOr<Report> RunPipeline(const Case& test_case);
absl::StatusOr<Report> RunFunction(const Case& test_case);
absl::StatusOr<Report> RunImageFunction(const Case& test_case);
absl::StatusOr<Report> RunBlocks(const Case& test_case);   // GGUF's blocks
absl::StatusOr<Report> RunCodes(const Case& test_case);    // the codes of fp8
absl::StatusOr<Report> RunAdapter(const Case& test_case);  // also sums of several
absl::StatusOr<Report> RunRefusedAdapter(const Case& test_case);
// A case that an error ended: it passes if the golden allows its adapter to be refused and the error names that kind.
// Otherwise returns the error.
absl::StatusOr<Report> RefusedByName(const Case& test_case, const absl::Status& error);
absl::StatusOr<Report> RunScheduler(const Case& test_case);
absl::StatusOr<Report> RunTrainingLoss(const Case& test_case);
absl::StatusOr<Report> RunTrainingSteps(const Case& test_case);
absl::StatusOr<Report> RunTrainedAdapter(const Case& test_case);
absl::StatusOr<Report> RunDensity(const Case& test_case);
absl::StatusOr<Report> RunStoredWeights(const Case& test_case);
absl::StatusOr<Report> RunRefusedFile(const Case& test_case);
absl::StatusOr<Report> RunKeyMap(const Case& test_case);

// Parses a case's scheduler class and config like a scheduler_config.json with that content.
absl::StatusOr<runtime::SamplerConfig> SamplerOf(const std::string& class_name, const base::Json& config);

}  // namespace tessera::golden
