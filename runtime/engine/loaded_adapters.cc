#include "runtime/engine/loaded_adapters.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fields/field_error.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "control/parameters/adapter_use.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {
namespace {

constexpr char kField[] = "loras";

absl::Status ErrorOf(const control::AdapterUse& use, absl::StatusCode code, absl::string_view what) {
  return base::WithField(absl::Status(code, absl::StrCat(kField, ": the adapter ", base::Quote(use.name), ": ", what)),
                         kField);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const models::Adapter>> LoadedAdapters::Get(const control::AdapterUse& use) {
  const auto found =
      std::ranges::find_if(adapters_, [&](const auto& adapter) { return adapter->digest == use.digest; });
  if (found != adapters_.end()) {
    adapters_.splice(adapters_.begin(), adapters_, found);
    return adapters_.front();
  }
  absl::StatusOr<models::Adapter> read = models::ReadAdapter(use.file, model_, place_);
  ++reads_;
  if (!read.ok()) {
    const bool is_of_file = absl::IsInvalidArgument(read.status());
    // The user knows the adapter by its name, not by the server's file.
    const std::string kept = absl::StrCat(std::filesystem::path(use.file).filename().string(), ": ");
    return ErrorOf(use, is_of_file ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition,
                   absl::StripPrefix(read.status().message(), kept));
  }
  if (read->digest != use.digest) {
    return ErrorOf(use, absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("the file's SHA-256 is ", read->digest, ", and the job asks for ", use.digest,
                                "; the file was replaced"));
  }
  adapters_.push_front(std::make_shared<const models::Adapter>(*std::move(read)));
  bytes_ += adapters_.front()->bytes;
  while (bytes_ > max_bytes_ && adapters_.size() > 1) {
    bytes_ -= adapters_.back()->bytes;
    adapters_.pop_back();
  }
  return adapters_.front();
}

absl::Status LoadedAdapters::CheckPrediction(const control::AdapterUse& use, const models::Adapter& adapter) const {
  if (adapter.prediction_type.empty()) return absl::OkStatus();
  const std::optional<PredictionType> known = PredictionTypeOf(adapter.prediction_type);
  if (known && (*known == PredictionType::kFlow) == is_flow_) return absl::OkStatus();
  return ErrorOf(
      use, absl::StatusCode::kInvalidArgument,
      absl::StrCat("it was trained to predict ", base::Quote(adapter.prediction_type), ", and this model predicts ",
                   is_flow_ ? "a flow" : "\"epsilon\", \"v_prediction\" or \"sample\""));
}

absl::StatusOr<models::SharedAdapters> LoadedAdapters::Sum(std::span<const control::AdapterUse> uses) {
  std::vector<std::shared_ptr<const models::Adapter>> held;
  std::vector<models::ScaledAdapter> scaled;
  const control::AdapterUse* first = nullptr;  // the first that states a prediction type
  std::string prediction_type;
  for (const control::AdapterUse& use : uses) {
    if (use.scale == 0) continue;
    ASSIGN_OR_RETURN(std::shared_ptr<const models::Adapter> adapter, Get(use));
    RETURN_IF_ERROR(CheckPrediction(use, *adapter));
    if (!adapter->prediction_type.empty() && first == nullptr) {
      first = &use;
      prediction_type = adapter->prediction_type;
    }
    if (!adapter->prediction_type.empty() && adapter->prediction_type != prediction_type) {
      return ErrorOf(use, absl::StatusCode::kInvalidArgument,
                     absl::StrCat("it was trained to predict ", base::Quote(adapter->prediction_type),
                                  ", and the adapter ", base::Quote(first->name), " to predict ",
                                  base::Quote(prediction_type), "; use adapters that predict the same"));
    }
    scaled.push_back({.adapter = *adapter, .scale = use.scale, .name = use.name});
    held.push_back(std::move(adapter));
  }
  return models::AddAdapters(scaled);
}

}  // namespace tessera::runtime
