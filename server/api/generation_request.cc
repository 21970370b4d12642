#include "server/api/generation_request.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/number_text.h"
#include "base/status_macros.h"
#include "control/device.h"

namespace tessera::server {
namespace {

// Multiple of the pixels of the model's default size. Images with twice its sides still look good.
constexpr int64_t kFarBeyond = 4;

absl::Status CheckSide(absl::string_view id, int64_t value, bool binning, const control::ModelDescription& model) {
  const int64_t multiple = binning ? 1 : model.size_multiple;
  const int64_t low = (model.min_size + multiple - 1) / multiple * multiple;
  const int64_t high = model.max_size / multiple * multiple;
  if (low == high && value != low) {
    return base::ErrorOfField(id, absl::StrCat(" is ", value, "; the only valid value is ", low));
  }
  const std::string valid = absl::StrCat(
      "valid values are ", multiple > 1 ? absl::StrCat("multiples of ", multiple, " from ") : "", low, " to ", high);
  if (value < low || value > high) {
    return base::ErrorOfField(
        id, absl::StrCat(" is ", value, "; ", valid, ", the nearest is ", std::clamp(value, low, high)));
  }
  if (value % multiple != 0) {
    const int64_t below = value / multiple * multiple;
    return base::ErrorOfField(
        id, absl::StrCat(" is ", value, "; ", valid, ", the nearest are ", below, " and ", below + multiple));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const std::string& device) {
  const std::optional<control::Device> known = control::ParseDevice(device);
  if (known.has_value() && known->index < 1024) return absl::OkStatus();
  return base::ErrorOfField("device", absl::StrCat(" is ", QuotedValue(device), "; valid values are ",
                                                   control::kDeviceNames, ", with N from 0 to 1023"));
}

// Whether a field has a value; below, how messages show that value.
bool IsGiven(const std::string& value) { return !value.empty(); }
template <typename Value>
bool IsGiven(const std::vector<Value>& values) {
  return !values.empty();
}
template <typename Value>
bool IsGiven(const std::optional<Value>& value) {
  return value.has_value();
}
std::string Shown(const std::string& value) { return QuotedValue(value); }
std::string Shown(const std::vector<int64_t>& values) { return absl::StrJoin(values, ","); }
template <base::Described Item>
std::string Shown(const std::vector<Item>& values) {
  return absl::StrJoin(values, ",", [](std::string* out, const Item& value) { out->append(NameOfItem(value)); });
}
template <typename Value>
std::string Shown(const std::optional<Value>& value) {
  return absl::StrCat(*value);
}
std::string Shown(const std::optional<std::string>& value) { return QuotedValue(*value); }
std::string Shown(const std::optional<double>& value) { return base::NumberText(*value); }

// Checks that the model reads every option that is given.
absl::Status CheckOptionsRead(const GenerationRequest& request, const control::ModelDescription& model) {
  absl::Status status;
  const std::string all = model.options.empty()
                              ? "the model has no options of this kind"
                              : absl::StrCat("the model's options are ", absl::StrJoin(model.options, ", "));
  for (const RequestField& field : kRequestFields) {
    if (field.read_with == nullptr || std::ranges::count(model.options, field.read_with) > 0) continue;
    VisitValue(field, request, [&](const auto& value) {
      if (!IsGiven(value)) return;
      status.Update(base::ErrorOfField(
          field.id, absl::StrCat(" is ", Shown(value), "; this model does not read it, so leave it out; ", all)));
    });
  }
  return status;
}

// Checks fields that depend on each other.
absl::Status CheckCombinations(const GenerationRequest& request) {
  if (request.original_width.has_value() != request.original_height.has_value()) {
    const bool width = request.original_width.has_value();
    return base::ErrorOfField(
        width ? "original_width" : "original_height",
        absl::StrCat(" is ", width ? *request.original_width : *request.original_height, " without an original ",
                     width ? "height" : "width", "; give both or neither"));
  }
  if (request.skip_layers.empty() && (request.skip_layer_scale.has_value() || request.skip_layer_start.has_value() ||
                                      request.skip_layer_stop.has_value())) {
    return base::ErrorOfField(
        "skip_layers", " are not given; a scale, start or stop of skip layer guidance needs at least one of them");
  }
  return absl::OkStatus();
}

// The field's bounds, restricted to those of the model.
Bounds BoundsFor(const RequestField& field, const control::ModelDescription& model) {
  Bounds bounds = BoundsOf(field);
  const absl::string_view id = field.id;
  if (id == "steps") bounds.high = model.max_steps;
  if (id == "max_sequence_length") bounds.high = model.max_sequence_length;
  if (id == "skip_layers") bounds.high = std::max(model.blocks, 1) - 1;
  return bounds;
}

absl::Status CheckField(const RequestField& field, const GenerationRequest& request,
                        const control::ModelDescription& model) {
  const absl::string_view id = field.id;
  if (id == "max_sequence_length" && request.max_sequence_length.has_value() && model.max_sequence_length == 0) {
    return base::ErrorOfField(
        field.id, absl::StrCat(" is ", *request.max_sequence_length, "; this model reads no tokens, so leave it out"));
  }
  if (id == "guidance_scale" && std::isnan(request.guidance_scale.value_or(0))) {
    return base::ErrorOfField(field.id, absl::StrCat(" is nan; it must be a number from 0 to ", control::kScales.high,
                                                     ", the model's default is ", model.default_guidance_scale));
  }
  if (id == "sampler") {
    return request.sampler.empty() ? absl::OkStatus() : CheckWord(id, request.sampler, model.samplers);
  }
  if (id == "noise") return CheckWord(id, request.noise, Words(field));
  absl::Status status;
  VisitValue(field, request, [&](const auto& value) { status = CheckValue(field.id, value, BoundsFor(field, model)); });
  return status;
}

absl::StatusOr<control::JobParameters> ValidateUnnamed(const GenerationRequest& request,
                                                       const control::ModelDescription& model) {
  control::JobParameters job;
  job.width = model.default_width;
  job.height = model.default_height;
  job.steps = model.default_steps;
  job.guidance_scale = model.default_guidance_scale;
  job.clean_caption = model.default_clean_caption;
  job.resolution_binning = request.resolution_binning.value_or(model.default_resolution_binning && model.can_bin);
  job.max_sequence_length = model.default_max_sequence_length;
  job.seed = request.seed;
  if (job.resolution_binning && !model.can_bin) {
    return base::ErrorOfField("resolution_binning", " is on; this model has no table of sizes, so only off is valid");
  }
  absl::Status status = CheckOptionsRead(request, model);
  status.Update(CheckCombinations(request));
  for (const RequestField& field : kRequestFields) {
    if (!field.half) status.Update(CheckField(field, request, model));
  }
  status.Update(CheckSide("width", request.width.value_or(job.width), job.resolution_binning, model));
  status.Update(CheckSide("height", request.height.value_or(job.height), job.resolution_binning, model));
  status.Update(CheckValue("steps", request.steps.value_or(job.steps), BoundsFor(*FindField("steps"), model)));
  status.Update(CheckValue("count", request.count, BoundsOf(*FindField("count"))));
  if (request.count > 1 && request.seed > std::numeric_limits<uint64_t>::max() - (request.count - 1)) {
    status.Update(base::ErrorOfField("seed", absl::StrCat(" is ", request.seed, "; the seeds of ", request.count,
                                                          " images count up from it, so valid values are at most ",
                                                          std::numeric_limits<uint64_t>::max() - (request.count - 1))));
  }
  RETURN_IF_ERROR(status);
  const auto assign = [&](const auto& described, auto& parameter) {
    const RequestField* field = FindField(described.name);
    if (field == nullptr) return;
    VisitValue(*field, request, [&](const auto& value) {
      if (IsGiven(value)) CopyValue(value, parameter);
    });
  };
  base::ForEachField(assign, job);
  if (const control::SkipLayerGuidance& skip = job.options.skip_layers; skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start", absl::StrCat(" is ", base::NumberText(skip.start),
                                                               "; valid values are at most the stop, which is ",
                                                               base::NumberText(skip.stop)));
  }
  return job;
}

}  // namespace

absl::StatusOr<control::JobParameters> Validate(const GenerationRequest& request,
                                                const control::ModelDescription& model, FieldNames names) {
  absl::StatusOr<control::JobParameters> job = ValidateUnnamed(request, model);
  if (!job.ok()) return Named(job.status(), names);
  return job;
}

std::vector<std::string> SizeWarnings(const control::JobParameters& job, const control::ModelDescription& model) {
  const int64_t own = int64_t{model.default_width} * model.default_height;
  if (own == 0 || int64_t{job.width} * job.height <= kFarBeyond * own) return {};
  return {absl::StrCat("size: ", job.width, "x", job.height, " is far beyond the ", model.default_width, "x",
                       model.default_height, " that the model was made for; expect a poor picture and a long time")};
}

absl::StatusOr<control::Dtype> ServedDtype(const std::string& name, const std::string& device) {
  const bool cuda = control::IsDevice(device, control::DeviceKind::kCuda);
  const control::Dtype usual = cuda ? control::Dtype::kBf16 : control::Dtype::kFp32;
  absl::Status status = name.empty() ? absl::OkStatus() : CheckWord("dtype", name, base::EnumNames<control::Dtype>());
  status.Update(CheckDevice(device));
  if (!status.ok()) return Named(status, FieldNames::kCommandLine);
  return base::EnumOf<control::Dtype>(name).value_or(usual);
}

}  // namespace tessera::server
