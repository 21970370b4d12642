// Runs the cases of text encoders that record their states in fp64, by layer: "f64.hidden.k" is the state after layer k
// and "f64.embeddings" that before the first one. States in fp32 are compared with those in fp64 where no others are
// recorded.
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "models/text_encoders/text_encoder.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {
namespace {

// The index of a recorded state; −1 for another tensor.
int64_t StateOf(absl::string_view name) {
  if (name == "embeddings") return 0;
  int64_t state = -1;
  return absl::ConsumePrefix(&name, "hidden.") && absl::SimpleAtoi(name, &state) ? state : -1;
}

}  // namespace

absl::StatusOr<Report> RunWideTextEncoder(const Case& test_case, const Tensors& gold) {
  const c10::InferenceMode no_gradients;
  const std::string folder = test_case.Path(test_case.Text("folder")), class_name = test_case.Text("class");
  OneRank rank;
  Report report;
  for (const auto& [dtype, precision] : {std::pair{at::kFloat, "f32."}, {at::kDouble, "f64."}}) {
    models::ParamTable table(dtype, test_case.device);
    models::TextEncoderConfig config;
    const auto parse = [&](base::ConfigReader& reader) { return models::ReadTextEncoder(class_name, reader); };
    const auto make = [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); };
    ASSIGN_OR_RETURN(const std::unique_ptr<models::TextEncoder> encoder,
                     OpenComponent(folder, folder + "/config.json", parse, make, config, table));
    const double tolerance = test_case.Tolerance(dtype == at::kFloat ? "fp32" : "fp64");
    for (const auto& [name, expected] : gold) {
      absl::string_view what = name;
      if (!absl::ConsumePrefix(&what, "f64.")) continue;
      const int64_t state = StateOf(what);
      if (state < 0) continue;
      const std::string own = std::string(precision) + std::string(what);
      const at::Tensor hidden = encoder
                                    ->Forward({.ids = gold.at("input_ids").to(test_case.device),
                                               .mask = gold.at("attention_mask").to(test_case.device),
                                               .states = {state}},
                                              rank.context)
                                    .hidden;
      report.Add(own, RelativeError(hidden, gold.contains(own) ? gold.at(own) : expected), tolerance);
    }
  }
  return report;
}

}  // namespace tessera::golden
