// A folder of golden cases (tests/golden/README.md says what is in one) and what running a case of it tells.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "parallel/plan/layout.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::golden {

// One entry of cases.json.
struct Case {
  std::string root;  // the folder
  std::string file;  // relative to it
  std::string kind;
  base::Json arguments;
  base::Json tolerance;
  at::Device device = at::kCPU;  // where models compute; what they return is compared on the host
  parallel::Layout layout;       // of ranks, each a thread

  std::string Path(const std::string& relative) const { return root + "/" + relative; }
  std::string Text(const char* argument) const;  // "" if there is none
  int64_t Int(const char* argument, int64_t fallback) const;
  double Number(const char* argument, double fallback) const;
  bool Bool(const char* argument, bool fallback) const;
  double Tolerance(const char* name) const;  // 0, that is exact, where the manifest gives none
};

// Of cases.json; without one, a case of kind tokenizer for each folder that has an ids.json.
absl::StatusOr<std::vector<Case>> ReadCases(const std::string& root);

// The tensors of a safetensors file, as stored.
using Tensors = std::map<std::string, at::Tensor>;
absl::StatusOr<Tensors> ReadTensors(const std::string& path);
Tensors OnDevice(Tensors tensors, at::Device device);

// Largest absolute difference; relative: to the largest absolute value expected. Infinity where shapes differ or a
// value is not finite.
double AbsoluteError(const at::Tensor& actual, const at::Tensor& expected);
double RelativeError(const at::Tensor& actual, const at::Tensor& expected);

// Collects the comparisons of one case and keeps the one that came closest to its tolerance, or went furthest beyond.
class Report {
 public:
  void Add(const std::string& what, double error, double tolerance);
  // Takes over another report's worst comparison, and all of its count.
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

// Runs one case. Unimplemented: it belongs to a family that is not built. Any other error counts as a failure; an
// exception is one.
absl::StatusOr<Report> RunCase(const Case& test_case);

// The program: tessera-golden DIR [--only TEXT] [--device NAME].
int Main(int argc, char** argv);

// The kinds, each in a file of its own.
absl::StatusOr<Report> RunTokenizer(const Case& test_case);
absl::StatusOr<Report> RunTextEncoder(const Case& test_case);
absl::StatusOr<Report> RunTransformer(const Case& test_case);
absl::StatusOr<Report> RunGradient(const Case& test_case);
absl::StatusOr<Report> RunLegacyConfig(const Case& test_case);
absl::StatusOr<Report> RunAutoencoder(const Case& test_case);
absl::StatusOr<Report> RunPipeline(const Case& test_case);
absl::StatusOr<Report> RunFunction(const Case& test_case);
absl::StatusOr<Report> RunAdapter(const Case& test_case);  // and sums of several
absl::StatusOr<Report> RunRefusedAdapter(const Case& test_case);
absl::StatusOr<Report> RunScheduler(const Case& test_case);
absl::StatusOr<Report> RunTrainingLoss(const Case& test_case);
absl::StatusOr<Report> RunTrainingSteps(const Case& test_case);
absl::StatusOr<Report> RunTrainedAdapter(const Case& test_case);
absl::StatusOr<Report> RunDensity(const Case& test_case);

// A case's scheduler class and config as a scheduler_config.json of that content would be read.
absl::StatusOr<runtime::SamplerConfig> SamplerOf(const std::string& class_name, const base::Json& config);

}  // namespace tessera::golden
