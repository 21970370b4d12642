#include "server/generation_request.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runtime/utf8.h"

namespace tessera {
namespace {

constexpr size_t kMaxQuotedBytes = 60;

// A value as an error message shows it: readable whatever bytes it has.
std::string Quoted(absl::string_view value) {
  std::string shown = ReplaceInvalidUtf8(value.substr(0, kMaxQuotedBytes));
  for (char& c : shown) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::StrCat("'", shown, value.size() > kMaxQuotedBytes ? "…'" : "'");
}

// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b` (optimal string alignment).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; legal is ", low, " to ", high,
                                                 ", the nearest is ", std::clamp(value, low, high)));
}

absl::Status CheckPrompt(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxPromptBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", text.size(), " bytes; legal is at most ", kMaxPromptBytes));
  }
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has a NUL byte at offset ", nul, "; legal is UTF-8 text without NUL"));
  }
  if (const size_t wrong = FirstInvalidUtf8(text); wrong < text.size()) {
    const auto byte = static_cast<unsigned char>(text[wrong]);
    return absl::InvalidArgumentError(absl::StrCat(field, " is not valid UTF-8: byte 0x", absl::Hex(byte),
                                                   " at offset ", wrong, "; legal is UTF-8 text"));
  }
  return absl::OkStatus();
}

absl::Status CheckSide(absl::string_view field, int64_t value, bool binning, const ModelDescription& model) {
  const int64_t multiple = binning ? 1 : model.size_multiple;
  const int64_t low = (model.min_size + multiple - 1) / multiple * multiple;
  const int64_t high = model.max_size / multiple * multiple;
  const std::string legal = absl::StrCat(
      "legal are ", multiple > 1 ? absl::StrCat("multiples of ", multiple, " from ") : "", low, " to ", high);
  if (value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, "; ", legal, ", the nearest is ", std::clamp(value, low, high)));
  }
  if (value % multiple != 0) {
    const int64_t below = value / multiple * multiple;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, "; ", legal, ", the nearest are ", below, " and ", below + multiple));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const std::string& device) {
  absl::string_view number = device;
  int32_t index = 0;
  if (absl::ConsumePrefix(&number, "cuda:")) {
    const bool digits = !number.empty() && std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
    if (digits && absl::SimpleAtoi(number, &index) && index < 1024) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("device is ", Quoted(device), "; legal are cpu, cuda, and cuda:N with N from 0 to 1023"));
  }
  return CheckName("device", device, {"cpu", "cuda", "cuda:0"});
}

}  // namespace

absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> legal) {
  if (std::find(legal.begin(), legal.end(), value) != legal.end()) return absl::OkStatus();
  const std::string spelt = absl::AsciiStrToLower(value.substr(0, kMaxQuotedBytes));
  const std::string* nearest = nullptr;
  size_t least = std::numeric_limits<size_t>::max();
  size_t most_in_front = 0;
  for (const std::string& name : legal) {
    const std::string lower = absl::AsciiStrToLower(name);
    const size_t distance = EditDistance(spelt, lower);
    const size_t in_front = std::mismatch(spelt.begin(), spelt.end(), lower.begin(), lower.end()).first - spelt.begin();
    // More than half of the letters wrong is another word.
    if (distance * 2 > std::max(name.size(), spelt.size())) continue;
    if (distance < least || (distance == least && in_front > most_in_front)) {
      least = distance;
      most_in_front = in_front;
      nearest = &name;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", Quoted(value), " is unknown; legal are ", absl::StrJoin(legal, ", "),
                   nearest == nullptr ? "" : absl::StrCat("; did you mean '", *nearest, "'?")));
}

absl::StatusOr<JobParameters> Validate(const GenerationRequest& request, const ModelDescription& model) {
  JobParameters job;
  job.resolution_binning = request.resolution_binning.value_or(model.default_resolution_binning && model.can_bin);
  if (job.resolution_binning && !model.can_bin) {
    return absl::InvalidArgumentError(
        "resolution binning is on; this model has no table of sizes, so legal is only off (--no-binning)");
  }
  job.clean_caption = request.clean_caption.value_or(model.default_clean_caption);

  const int64_t width = request.width.value_or(model.default_width);
  const int64_t height = request.height.value_or(model.default_height);
  const int64_t steps = request.steps.value_or(model.default_steps);
  const int64_t tokens = request.max_sequence_length.value_or(model.default_max_sequence_length);
  absl::Status status = CheckPrompt("prompt", request.prompt);
  status.Update(CheckPrompt("negative prompt", request.negative_prompt));
  status.Update(CheckSide("width", width, job.resolution_binning, model));
  status.Update(CheckSide("height", height, job.resolution_binning, model));
  status.Update(CheckRange("steps", steps, 1, model.max_steps));
  status.Update(CheckRange("count", request.count, 1, kMaxImageCount));
  if (request.max_sequence_length.has_value()) {
    status.Update(CheckRange("maximum sequence length", tokens, 1, kMaxSequenceLength));
  }
  job.guidance_scale = request.guidance_scale.value_or(model.default_guidance_scale);
  if (!std::isfinite(job.guidance_scale) || job.guidance_scale < 0 || job.guidance_scale > kMaxGuidanceScale) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("guidance is ", job.guidance_scale, "; legal is a number from 0 to ", kMaxGuidanceScale,
                     std::isnan(job.guidance_scale)
                         ? absl::StrCat(", the model's default is ", model.default_guidance_scale)
                         : absl::StrCat(", the nearest is ", job.guidance_scale < 0 ? 0 : kMaxGuidanceScale))));
  }
  if (!request.sampler.empty()) status.Update(CheckName("sampler", request.sampler, model.samplers));
  status.Update(CheckName("noise", request.noise, {"tessera", "torch-cpu"}));
  if (request.count > 1 && request.seed > std::numeric_limits<uint64_t>::max() - (request.count - 1)) {
    status.Update(absl::InvalidArgumentError(absl::StrCat("seed is ", request.seed, "; with count ", request.count,
                                                          " legal is at most ",
                                                          std::numeric_limits<uint64_t>::max() - (request.count - 1))));
  }
  if (!status.ok()) return status;

  job.prompt = request.prompt;
  job.negative_prompt = request.negative_prompt;
  job.width = static_cast<int32_t>(width);
  job.height = static_cast<int32_t>(height);
  job.steps = static_cast<int32_t>(steps);
  job.seed = request.seed;
  job.sampler = request.sampler;
  job.noise = request.noise;
  job.max_sequence_length = static_cast<int32_t>(tokens);
  return job;
}

absl::StatusOr<LoadParameters> Validate(const PlacementRequest& request, const std::string& model) {
  absl::Status status = CheckName("dtype", request.dtype, {"fp64", "fp32", "bf16"});
  status.Update(CheckDevice(request.device));
  status.Update(CheckRange("threads", request.threads, 0, kMaxThreads));
  if (!status.ok()) return status;
  return LoadParameters{.model = model,
                        .dtype = request.dtype,
                        .device = request.device,
                        .threads = static_cast<int32_t>(request.threads)};
}

}  // namespace tessera
