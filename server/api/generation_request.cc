#include "server/api/generation_request.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/field_error.h"
#include "base/macros/status_macros.h"
#include "base/text/number_text.h"
#include "control/host/device.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "server/api/request_fields.h"

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

// Returns a value that is given as messages show it.
template <class Value>
std::string ShownValue(const Value& value) {
  if constexpr (base::kIsOptional<Value>) {
    return ShownValue(*value);
  } else if constexpr (base::kIsList<Value>) {
    return absl::StrJoin(value, ",", [](std::string* out, const auto& item) { out->append(ShownValue(item)); });
  } else if constexpr (base::Described<Value>) {
    return NameOfItem(value);
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return QuotedValue(value);
  } else if constexpr (std::is_same_v<Value, double>) {
    return base::NumberText(value);
  } else {
    return absl::StrCat(value);
  }
}

// Checks that the model reads every option that is given.
absl::Status CheckOptionsRead(const ImageRequest& request, const control::ModelDescription& model) {
  absl::Status status;
  const std::string all = model.options.empty()
                              ? "the model has no options of this kind"
                              : absl::StrCat("the model's options are ", absl::StrJoin(model.options, ", "));
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        const char* option = field.facts.read_with;
        if (option == nullptr || !IsGiven(value) || std::ranges::count(model.options, option) > 0) return;
        status.Update(base::ErrorOfField(
            field.name,
            absl::StrCat(" is ", ShownValue(value), "; this model does not read it, so leave it out; ", all)));
      },
      request);
  return status;
}

// Checks fields that depend on each other.
absl::Status CheckCombinations(const ImageRequest& request) {
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

// Returns the field's valid values, restricted to those of the model.
template <class Valid>
Valid ValidFor(absl::string_view id, Valid valid, const control::ModelDescription& model) {
  if constexpr (std::is_same_v<Valid, base::Integer>) {
    if (id == "steps") valid.high = static_cast<uint64_t>(model.max_steps);
    if (id == "max_sequence_length") valid.high = static_cast<uint64_t>(model.max_sequence_length);
  } else if constexpr (std::is_same_v<Valid, base::List<base::Integer>>) {
    if (id == "skip_layers") valid.each.high = static_cast<uint64_t>(std::max(model.blocks, 1) - 1);
  }
  return valid;
}

// An error about one value of a list is about `id` with "[]".
template <class Value, class Valid>
absl::Status CheckGiven(const std::string& id, const Value& value, const Valid& valid) {
  return base::CheckValue(id, std::nullopt, value, valid);
}
template <class Item, class Each>
absl::Status CheckGiven(const std::string& id, const std::vector<Item>& values, const base::List<Each>& valid) {
  absl::Status status;
  if (values.size() > valid.most) status = base::ErrorOfCount(id, values.size(), valid.most);
  for (auto item = values.begin(); item != values.end() && status.ok(); ++item) {
    if constexpr (base::Described<Item>) {
      const absl::Status fields = base::CheckFields(*item);
      if (fields.ok()) continue;
      status = base::ErrorOfField(id + "[]", absl::StrCat(" ", QuotedValue(NameOfItem(*item)), ": ", fields.message()));
    } else {
      status = base::CheckValue(id + "[]", std::nullopt, *item, valid.each);
      if (std::find(values.begin(), item, *item) == item) continue;
      status.Update(base::ErrorOfField(id + "[]", absl::StrCat(" ", *item, " is given twice; each may be given once")));
    }
  }
  if constexpr (base::HasRules<std::vector<Item>>) status.Update(CheckRules(values));
  return status;
}

template <class Field, class Value>
absl::Status CheckField(const Field& field, const Value& value, const ImageRequest& request,
                        const control::ModelDescription& model) {
  const absl::string_view id = field.name;
  if (id == "max_sequence_length" && request.max_sequence_length.has_value() && model.max_sequence_length == 0) {
    return base::ErrorOfField(
        id, absl::StrCat(" is ", *request.max_sequence_length, "; this model reads no tokens, so leave it out"));
  }
  if (id == "guidance_scale" && std::isnan(request.guidance_scale.value_or(0))) {
    return base::ErrorOfField(id, absl::StrCat(" is nan; it must be a number from 0 to ", control::kScales.high,
                                               ", the model's default is ", model.default_guidance_scale));
  }
  if (id == "sampler") {
    return request.sampler.empty() ? absl::OkStatus() : CheckWord(id, request.sampler, model.samplers);
  }
  if (id == "noise") return CheckWord(id, request.noise, Words(field.facts));
  return CheckGiven(field.name, value, ValidFor(id, field.valid, model));
}

absl::StatusOr<control::JobParameters> ValidateUnnamed(const ImageRequest& request,
                                                       const control::ModelDescription& model) {
  control::JobParameters job = control::DefaultJob(model);
  job.resolution_binning = request.resolution_binning.value_or(job.resolution_binning);
  if (job.resolution_binning && !model.can_bin) {
    return base::ErrorOfField("resolution_binning", " is on; this model has no table of sizes, so only off is valid");
  }
  absl::Status status = CheckOptionsRead(request, model);
  status.Update(CheckCombinations(request));
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        if (!field.facts.is_parameter || field.facts.half) return;
        status.Update(CheckField(field, value, request, model));
      },
      request);
  status.Update(CheckSide("width", request.width.value_or(job.width), job.resolution_binning, model));
  status.Update(CheckSide("height", request.height.value_or(job.height), job.resolution_binning, model));
  status.Update(base::CheckValue("steps", std::nullopt, request.steps.value_or(job.steps),
                                 ValidFor("steps", base::Integer{.low = 1}, model)));
  const int64_t count = request.count.value_or(1);
  status.Update(base::CheckValue("count", std::nullopt, count, base::Integer{1, kMaxImageCount}));
  const uint64_t most_seed =
      std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(std::max<int64_t>(count, 1) - 1);
  if (request.seed.value_or(0) > most_seed) {
    status.Update(
        base::ErrorOfField("seed", absl::StrCat(" is ", *request.seed, "; the seeds of ", count,
                                                " images count up from it, so valid values are at most ", most_seed)));
  }
  RETURN_IF_ERROR(status);
  CopyFields(request, job);
  if (const control::SkipLayerGuidance& skip = job.options.skip_layers; skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start", absl::StrCat(" is ", base::NumberText(skip.start),
                                                               "; valid values are at most the stop, which is ",
                                                               base::NumberText(skip.stop)));
  }
  return job;
}

}  // namespace

absl::StatusOr<control::JobParameters> Validate(const ImageRequest& request, const control::ModelDescription& model,
                                                FieldNames names) {
  absl::StatusOr<control::JobParameters> job = ValidateUnnamed(request, model);
  if (!job.ok()) return Named(job.status(), names);
  return job;
}

void SetSizeLike(absl::Span<const control::PictureUse> pictures, bool has_mask, const control::ModelDescription& model,
                 ImageRequest& request) {
  if (pictures.empty() || pictures.front().width == 0) return;
  const bool has_side = request.width.has_value() || request.height.has_value();
  if (has_side && model.pictures.use != control::PictureInput::kReference) return;
  const control::ImageSize size = control::SizeOfPictures(model, pictures, has_mask);
  if (!request.width.has_value()) request.width = size.width;
  if (!request.height.has_value()) request.height = size.height;
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
