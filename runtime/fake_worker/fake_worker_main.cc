// tessera-fake-worker is a worker without a model. `tessera serve --fake-workers` and every front-end test run it in
// place of tessera-worker.
//
// Its images are gradients that depend on the prompt, the options, the adapters, the pictures, the seed and the
// completed steps. TESSERA_FAKE_WORKER holds its script (control/fakes/fake_script.h).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/fields/field_error.h"
#include "base/files/file.h"
#include "base/files/standard_streams.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/fakes/fake_script.h"
#include "control/host/device.h"
#include "control/model/model_description.h"
#include "control/parameters/load_parameters.h"
#include "control/pictures/picture_input.h"
#include "control/protocol/command_handler.h"
#include "control/protocol/commands.h"
#include "control/protocol/control_channel.h"
#include "control/protocol/job_commands.h"
#include "control/protocol/worker_version.h"
#include "parallel/segment/effort_meter.h"
#include "parallel/segment/segment.h"

namespace tessera::runtime {
namespace {

// The number of heads of a model without files; any valid number of ranks divides it.
constexpr int32_t kHeadsOfAnyModel = 24;

constexpr absl::Duration kBeat = absl::Milliseconds(20);

constexpr int64_t kWeightBytes = 24;  // of its weight files

// The job's fields that only some models read; empty if all have their defaults.
std::string OptionsOf(const control::JobParameters& job) {
  std::string text;
  if (job.negative_prompt.has_value()) absl::StrAppend(&text, "negative ", *job.negative_prompt, ";");
  const control::PromptOptions& options = job.options;
  if (options == control::PromptOptions()) return text;
  std::vector<std::string> values;
  const auto add = [&values](const auto&, const auto& value) {
    if constexpr (requires { absl::StrCat(value); }) {
      values.push_back(absl::StrCat(value));
    } else {
      values.push_back(absl::StrJoin(value, ","));
    }
  };
  base::ForEachField(add, options);
  absl::StrAppend(&text, absl::StrJoin(values, ";"));
  return text;
}

// The contents of the job's adapters with their scales, so that different bytes make a different image; those of scale
// 0 are omitted.
absl::StatusOr<std::string> AdaptersOf(const control::JobParameters& job) {
  std::string text;
  for (const control::AdapterUse& adapter : job.adapters) {
    std::ifstream file(adapter.file, std::ios::binary);
    if (!file.good()) return absl::NotFoundError(absl::StrCat("adapter '", adapter.name, "' cannot be read"));
    if (adapter.scale == 0) continue;
    absl::StrAppend(&text, adapter.scale, ";", std::string(std::istreambuf_iterator<char>(file), {}), ";");
  }
  return text;
}

// The bytes of the job's pictures, so that other pictures make another image.
absl::StatusOr<std::string> PicturesOf(const control::JobParameters& job) {
  std::string text;
  for (const auto* pictures : {&job.images, &job.mask}) {
    for (const control::PictureUse& picture : *pictures) {
      std::ifstream file(picture.file, std::ios::binary);
      if (!file.good()) return absl::DataLossError("a picture of the job cannot be read");
      absl::StrAppend(&text, std::string(std::istreambuf_iterator<char>(file), {}), ";");
    }
  }
  return text;
}

class FakeHandler final : public control::CommandHandler {
 public:
  // `segment` is where the group watches the rank's progress; it may be null.
  FakeHandler(control::FakeScript script, const std::string& layout, std::shared_ptr<parallel::HostSegment> segment,
              int rank)
      : script_(std::move(script)),
        serial_(layout.empty() || layout == "serial"),
        sends_results_(rank == 0),
        segment_(std::move(segment)),
        rank_(rank) {}

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model,
                                                     const control::ComponentFiles&) override {
    RETURN_IF_ERROR(Obey("describe"));
    const bool any_model = script_.Has("any-model");
    if (!any_model && !std::ifstream(model + "/model_index.json").good()) {
      return absl::NotFoundError(absl::StrCat("model: '", model, "' has no model_index.json"));
    }
    control::ModelDescription description;
    description.pipeline = "FakePipeline";
    description.family = "fake";
    description.libraries = "none";
    description.instruction_set = "baseline";
    description.digest = "0123456789abcdef";
    description.components = {{.name = "transformer",
                               .role = control::ComponentRole::kTransformer,
                               .class_name = "Gradient",
                               .parameters = 12,
                               .bytes = kWeightBytes,
                               .dtype = "bf16",
                               .files = {"transformer/model.safetensors"}}};
    description.pictures = control::UsualRules(
        base::EnumOf<control::PictureInput>(script_.Text("pictures")).value_or(control::PictureInput::kNone));
    description.size_multiple = 8;
    description.min_size = 8;
    description.max_size = 2048;
    description.default_height = description.default_width = 64;
    description.default_steps = 6;
    description.max_steps = 1000;
    description.default_guidance_scale = 4;
    description.default_max_sequence_length = 24;
    description.max_sequence_length = 48;
    description.options = {control::prompt_option::kPrompt2, control::prompt_option::kTrueCfgScale,
                           control::prompt_option::kClipSkip, control::prompt_option::kSkipLayers,
                           control::prompt_option::kOriginalSize};
    description.heads = any_model ? kHeadsOfAnyModel : 4;
    description.blocks = 10;
    control::TransformerShape& transformer = description.transformer;
    transformer.exchange.width = 32;
    transformer.exchange.output_features = transformer.exchange.prediction_features = 16;
    transformer.exchange.blocks.assign(10, {.kind = parallel::BlockKind::kCross});
    transformer.block_flops.assign(10, 1);
    description.cost = {.token_side = 8,
                        .text_tokens = 24,
                        .guidance_is_input = true,
                        .flops = {.image = 24, .image_pair = 12},
                        .blocks = 10,
                        .values_per_token = 5,
                        .values_per_block = 121};
    control::ComponentWeights weights = {.role = control::ComponentRole::kTransformer, .frame = {.elements = 2}};
    weights.blocks.assign(10, {.elements = 1, .matrices = 1, .rows = 1});
    description.weights = {weights};
    description.default_clean_caption = true;
    description.default_sampler = "dpm++";
    description.samplers = {"ddim", "euler", "dpm++"};
    if (!any_model) description.warnings = {"scheduler: field 'nonsense' is unknown"};
    return description;
  }

  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& device) override {
    if (control::IsDevice(device, control::DeviceKind::kCpu) || !script_.Has("identity")) {
      return control::DeviceIdentity();
    }
    const std::vector<std::string> parts = absl::StrSplit(script_.Text("identity"), ',');
    return control::DeviceIdentity{
        .device = parts[0], .driver = parts[1], .cudnn = parts[2], .nccl = parts[3], .communicator = parts[4]};
  }

  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters) override {
    if (script_.Has("no-device")) {
      return absl::ResourceExhaustedError(absl::StrCat("device '", parameters.device, "' is not available"));
    }
    if (script_.Has("no-room") && serial_ && !parameters.placement.stream_blocks) {
      return absl::ResourceExhaustedError("the model does not fit in memory");
    }
    RETURN_IF_ERROR(Obey("load"));
    if (const std::string file = script_.Text("loads"); !file.empty()) {
      std::ofstream(file, std::ios::app) << (parameters.placement.stream_blocks ? "load streamed" : "load")
                                         << std::endl;
    }
    on_device_ = !control::IsDevice(parameters.device, control::DeviceKind::kCpu);
    caches_ = parameters.prompt_cache_bytes > 0;
    reads_encoders_ = parameters.placement.text_encoders == control::ComponentPlacement::kUnloaded;
    ReportLoad(kWeightBytes / 2);
    WaitForLoadGate();
    control::Loaded loaded = {.seconds = Work("load-time"), .weight_bytes = 48};
    ReportLoad(kWeightBytes);
    loaded.device_memory = DeviceMemory();
    contents_ = base::ReadSmallFile(script_.Text("contents"), 64).value_or("");
    if (on_device_ && script_.Has("memory")) {
      const auto most = static_cast<uint64_t>(script_.Number("memory"));
      const auto free = script_.Has("memory-free") ? static_cast<uint64_t>(script_.Number("memory-free")) : most;
      loaded.memory_budget = {.most = most, .free = std::min(free, most)};
    }
    return loaded;
  }

  absl::StatusOr<control::ModelDigest> Digest() override { return control::ModelDigest{.contents = contents_}; }

  absl::StatusOr<control::JobStarted> StartJob(uint64_t job, const control::JobParameters& parameters) override {
    RETURN_IF_ERROR(Obey("start", parameters.prompt));
    ASSIGN_OR_RETURN(const std::string adapters, AdaptersOf(parameters));
    ASSIGN_OR_RETURN(const std::string pictures, PicturesOf(parameters));
    control::JobStarted started;
    started.first_step = std::min(static_cast<int32_t>(script_.Number("first-step")), parameters.steps - 1);
    started.steps = parameters.steps - started.first_step;
    jobs_[job] = {.parameters = parameters, .contents = adapters + pictures, .steps = started.steps};
    if (job != control::kProbeJob) {
      ++started_jobs_;
      jobs_[job].fails = IsTurnOf("error-every");
      jobs_[job].dies = IsTurnOf("die-every");
    }
    started.height = started.generated_height = parameters.height;
    started.width = started.generated_width = parameters.width;
    started.sampler = parameters.sampler.empty() ? "dpm++" : parameters.sampler;
    started.prompt_tokens = 3;
    started.max_sequence_length = parameters.max_sequence_length;
    started.cached = caches_ && !encoded_.insert(parameters.prompt).second;
    if (!started.cached) {
      ReadEncoders();
      started.seconds = Work("encode-time");
    }
    if (script_.Fault("start", parameters.prompt) == "warn") started.warnings = {"the prompt asks for a warning"};
    return started;
  }

  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override {
    bool has_read = false;
    for (const control::JobParameters& job : jobs) {
      if (!encoded_.insert(job.prompt).second) continue;
      if (!std::exchange(has_read, true)) ReadEncoders();
      Work("encode-time");
    }
    return static_cast<int32_t>(jobs.size());
  }

  absl::StatusOr<control::Stepping> Step(absl::Span<const uint64_t> jobs) override {
    const Job& first = jobs_.at(jobs[0]);
    if (jobs[0] != control::kProbeJob) WaitForPermit();
    for (const uint64_t id : jobs) {
      Job& job = jobs_.at(id);
      const std::string& prompt = job.parameters.prompt;
      RETURN_IF_ERROR(Obey(absl::StrCat("step", job.completed + 1), prompt));
      if (job.completed == job.steps) return absl::FailedPreconditionError("the job has no steps left");
      if (job.completed == 0) WaitAtGate(prompt);
      if (job.dies && job.completed == job.steps / 2) Die("die-every");
      ++job.completed;
      if (const std::string file = script_.Text("sizes"); !file.empty()) {
        std::ofstream(file, std::ios::app) << job.parameters.width << "x" << job.parameters.height << std::endl;
      }
    }
    const double seconds = Work("step-time");
    return [stepped = control::Stepped{.completed = first.completed,
                                       .seconds = seconds,
                                       .digest = DigestOf(first),
                                       .device_memory = DeviceMemory()}] { return stepped; };
  }

  absl::StatusOr<control::Decoding> Decode(uint64_t job) override {
    return [this, decoded = jobs_.at(job),
            is_probe = job == control::kProbeJob](control::RowSink rows) -> absl::StatusOr<control::Decoded> {
      RETURN_IF_ERROR(Obey(is_probe ? "decode-probe" : "decode"));
      return MakePixels(decoded, is_probe ? 0 : Work("decode-time"), rows);
    };
  }
  bool decodes_during_steps() const override { return serial_; }

  absl::StatusOr<control::LatentValues> Latents(uint64_t id) override {
    return control::LatentValues{.shape = {1, 1, 2}, .values = {static_cast<double>(DigestOf(jobs_.at(id))), 1}};
  }

  absl::StatusOr<control::LatentValues> Predict(uint64_t, const control::LatentValues& latents,
                                                absl::Span<const uint64_t> batch) override {
    control::LatentValues prediction = latents;
    if (!batch.empty() && script_.Has("batch-drift")) prediction.values[0] += 1;
    return prediction;
  }

  absl::Status EndJob(uint64_t job) override {
    jobs_.erase(job);
    return Obey("end");
  }

 private:
  std::optional<control::DeviceMemory> DeviceMemory() const {
    if (!on_device_ || !script_.Has("device-memory")) return std::nullopt;
    std::vector<uint64_t> bytes;
    for (const absl::string_view number : absl::StrSplit(script_.Text("device-memory"), ',')) {
      absl::SimpleAtoi(number, &bytes.emplace_back());
    }
    return control::DeviceMemory{.total = bytes[0], .free = bytes[1], .used = bytes[2], .cached = bytes[3]};
  }

  struct Job {
    control::JobParameters parameters;
    std::string contents;  // of its adapters and pictures
    int32_t steps = 0;     // that are run
    int32_t completed = 0;
    bool fails = false;
    bool dies = false;
  };

  absl::StatusOr<control::Decoded> MakePixels(const Job& job, double seconds, control::RowSink rows) {
    if (job.fails && job.completed == job.steps) {
      return absl::InvalidArgumentError("the job fails as the fake worker's script says");
    }
    uint64_t mixed = job.parameters.seed * 31 + job.completed;
    for (unsigned char c : absl::StrCat(job.parameters.prompt, OptionsOf(job.parameters), job.contents))
      mixed = mixed * 131 + c;
    mixed += static_cast<uint64_t>(script_.Number("salt"));
    std::vector<uint8_t> row(3 * static_cast<size_t>(job.parameters.width));
    for (int32_t y = 0; sends_results_ && y < job.parameters.height; ++y) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint8_t>(mixed + 2 * y + i);
      RETURN_IF_ERROR(rows(y, row));
    }
    return control::Decoded{
        .height = job.parameters.height, .width = job.parameters.width, .seconds = seconds, .completed = job.completed};
  }

  // Takes as long as the script says. Returns the seconds that it took.
  double Work(const std::string& time) {
    const absl::Duration began = base::SteadyNow();
    const absl::Duration end = began + script_.Time(time);
    absl::Duration now = began;
    const bool silent = script_.Has("silent");
    do {
      if (!silent) {
        if (segment_ != nullptr) ++segment_->Beats(rank_);
        absl::SleepFor(std::min(end - now, kBeat));
      }
      now = base::SteadyNow();
    } while (now < end);
    return absl::ToDoubleSeconds(now - began);
  }

  void ReadEncoders() const {
    const std::string file = script_.Text("encoders");
    if (reads_encoders_ && !file.empty()) std::ofstream(file, std::ios::app) << "read" << std::endl;
  }

  bool IsTurnOf(const std::string& order) const {
    const int64_t every = script_.Number(order);
    return every > 0 && started_jobs_ % every == 0;
  }

  static void Spin() { std::atomic_signal_fence(std::memory_order_seq_cst); }

  [[noreturn]] static void Die(const std::string& where) {
    std::cerr << "fake worker: die in " << where << std::endl;
    raise(SIGKILL);
    while (true) pause();
  }

  uint64_t DigestOf(const Job& job) const {
    const auto drifting = [&](const std::string& order) {
      return script_.Has(order) && job.completed >= script_.Number(order);
    };
    const bool drifts = drifting("drift") || drifting(absl::StrCat("drift-of-", job.parameters.prompt)) ||
                        (!serial_ && drifting("layout-drift"));
    return 1000 + static_cast<uint64_t>(job.completed) + (drifts ? 1000000 : 0);
  }

  void WaitAtGate(const std::string& prompt) const {
    const std::string gate = script_.Text("gate");
    if (gate.empty() || !absl::StrContains(prompt, "gated")) return;
    while (access(gate.c_str(), F_OK) != 0) absl::SleepFor(absl::Milliseconds(2));
  }

  // Reports how many bytes of its weight files it has read.
  void ReportLoad(uint64_t read) const {
    if (segment_ == nullptr) return;
    segment_->Load(rank_).total = kWeightBytes;
    segment_->Load(rank_).read = read;
  }

  void WaitForLoadGate() const {
    const std::string gate = script_.Text("load-gate");
    while (!gate.empty() && access(gate.c_str(), F_OK) != 0) {
      if (segment_ != nullptr) ++segment_->Beats(rank_);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  void WaitForPermit() {
    const std::string permits = script_.Text("permits");
    if (permits.empty()) return;
    const uintmax_t needed = ++permitted_steps_;
    std::error_code missing;
    for (uintmax_t size = 0; size < needed;) {
      size = std::filesystem::file_size(permits, missing);
      if (missing) size = 0;
      if (segment_ != nullptr) ++segment_->Beats(rank_);
      if (size < needed) absl::SleepFor(absl::Milliseconds(2));
    }
  }

  absl::Status Obey(const std::string& call, const std::string& prompt = "") {
    const std::string fault = script_.Fault(call, prompt);
    if (fault.empty() || fault == "warn") return absl::OkStatus();
    if (script_.Has("when") && access(script_.Text("when").c_str(), F_OK) != 0) return absl::OkStatus();
    if (const std::string file = script_.Text("faults"); !file.empty()) {
      std::ofstream(file, std::ios::app) << fault << " in " << call << std::endl;
    }
    if (fault == "refuse") return base::ErrorOfField("steps", " is 7; the model takes fewer");
    if (fault == "error") return absl::InvalidArgumentError(absl::StrCat(call, " fails as its script says"));
    if (fault == "throw") throw std::runtime_error(call + " throws as its script says\nframe #0: secret");
    if (fault == "exhausted") throw std::bad_alloc();
    if (fault == "die") Die(call);
    std::cerr << "fake worker: " << fault << " in " << call << std::endl;
    if (fault == "spin-in-call" && segment_ != nullptr) segment_->Area(0, rank_).activity = 1;
    while (fault != "hang") Spin();
    while (true) pause();
  }

  const control::FakeScript script_;
  const bool serial_;
  const bool sends_results_;
  const std::shared_ptr<parallel::HostSegment> segment_;
  const int rank_;
  std::string contents_;  // digest of the weights that it has loaded
  std::map<uint64_t, Job> jobs_;
  int64_t started_jobs_ = 0;
  uintmax_t permitted_steps_ = 0;
  bool on_device_ = false;
  bool caches_ = false;
  bool reads_encoders_ = false;    // for each use
  std::set<std::string> encoded_;  // prompts
};

int Main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i < argc; i += 2) options[argv[i]] = i + 1 < argc ? argv[i + 1] : "";
  int rank = 0, segment = -1;
  if (options["--socket"].empty() || (options.contains("--rank") && !absl::SimpleAtoi(options["--rank"], &rank)) ||
      (options.contains("--segment") && !absl::SimpleAtoi(options["--segment"], &segment))) {
    std::cerr << "tessera-fake-worker: takes the options of tessera-worker" << std::endl;
    return 2;
  }
  const char* text = std::getenv("TESSERA_FAKE_WORKER");
  absl::StatusOr<control::FakeScript> script = control::FakeScript::Read(text == nullptr ? "" : text, rank);
  if (!script.ok()) {
    std::cerr << script.status().message() << std::endl;
    return 2;
  }
  if (options.contains("--version")) {
    std::cout << (script->Has("version") ? control::WorkerVersion(script->Text("version")) : control::WorkerVersion())
              << std::endl;
    return 0;
  }
  if (script->Has("exit")) {
    std::cerr << "fake worker: exits as its script says" << std::endl;
    return static_cast<int>(script->Number("exit"));
  }
  const bool outlives = !options["--orphan-grace-period"].empty();
  while (script->Has("mute") || (outlives && script->Has("mute-if-adoptable"))) pause();
  const bool first = rank == 0;
  std::shared_ptr<parallel::HostSegment> shared;
  if (segment >= 0) {
    absl::StatusOr<std::shared_ptr<parallel::HostSegment>> mapped = parallel::HostSegment::Map(segment);
    if (!mapped.ok() || rank >= (*mapped)->ranks()) {
      std::cerr << "tessera-fake-worker: --segment is not a segment that has the rank" << std::endl;
      return 1;
    }
    shared = *std::move(mapped);
  }
  std::optional<parallel::EffortMeter> meter;
  if (shared != nullptr) meter.emplace(shared, rank);
  FakeHandler handler(*std::move(script), options["--layout"], shared, rank);
  double orphan_grace_period = 0;
  if (outlives && !absl::SimpleAtod(options["--orphan-grace-period"], &orphan_grace_period)) return 2;
  const absl::Status status =
      control::ServeControlChannel(handler, {.socket_path = options["--socket"],
                                             .orphan_grace_period = absl::Seconds(orphan_grace_period),
                                             .sends_results = first});
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tessera::runtime

int main(int argc, char** argv) {
  tessera::base::OpenStandardStreams();
  return tessera::runtime::Main(argc, argv);
}
