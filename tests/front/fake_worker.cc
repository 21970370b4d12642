// A worker without a model: every front-end test drives it in place of tessera-worker.
//
// Its images are gradients that depend on the prompt, the options, the seed and the steps done. TESSERA_FAKE_WORKER
// tells it to misbehave; it holds any of these, separated by blanks:
//   exit=CODE               ends before it listens
//   mute                    never listens
//   mute-if-lingering       the same where it was told to outlive its controller
//   no-device               refuses to load: the device is not there
//   no-room                 one rank refuses to load: there is no memory for more than a block at a time
//   CALL=error              describe, load, start, step3, decode, end: an error reply
//   CALL=throw              a C++ exception
//   CALL=exhausted          std::bad_alloc
//   CALL=die                SIGKILL
//   CALL=hang               never answers
//   salt=N                  other pixels for the same request
//   drift=N                 other latents from step N on
//   layout-drift=N          the same in a group of several ranks
//   batch-drift             another prediction beside other jobs
//   step-time=MS            every step takes so long
//   gate=FILE               the first step of a job whose prompt holds "gated" waits until FILE exists
//   loads=FILE              a line more in this file whenever it loads
// An order that begins with rankN: is for that rank of the group alone; CALL-of-WORD is for jobs with that prompt.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "runtime/control_channel.h"

namespace tessera {
namespace {

std::map<std::string, std::string> ReadOrders(const std::string& rank) {
  std::map<std::string, std::string> orders;
  const char* text = std::getenv("TESSERA_FAKE_WORKER");
  for (absl::string_view order : absl::StrSplit(text == nullptr ? "" : text, ' ', absl::SkipEmpty())) {
    if (absl::StartsWith(order, "rank") && !absl::ConsumePrefix(&order, absl::StrCat("rank", rank, ":"))) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(order, absl::MaxSplits('=', 1));
    orders.insert(parts);
  }
  return orders;
}

// Whatever of a job only some models read; empty where all of it has its default.
std::string OptionsOf(const JobParameters& job) {
  std::string text;
  if (job.negative_prompt.has_value()) absl::StrAppend(&text, "negative ", *job.negative_prompt, ";");
  const PromptOptions& options = job.options;
  if (options == PromptOptions()) return text;
  absl::StrAppend(&text, options.prompt_2, ";", options.prompt_3, ";", options.negative_prompt_2, ";",
                  options.negative_prompt_3, ";", options.true_cfg_scale, ";", options.guidance_rescale);
  const SkipLayerGuidance& skip = options.skip_layers;
  absl::StrAppend(&text, ";", options.clip_skip, ";", absl::StrJoin(skip.layers, ","), ";", skip.scale, ";");
  absl::StrAppend(&text, skip.start, ";", skip.stop);
  const OriginalSize& size = options.original_size;
  absl::StrAppend(&text, ";", size.height, ";", size.width, ";", size.crop_top, ";", size.crop_left);
  return text;
}

class FakeHandler final : public CommandHandler {
 public:
  FakeHandler(std::map<std::string, std::string> orders, const std::string& layout, bool sends_results)
      : orders_(std::move(orders)), serial_(layout.empty() || layout == "serial"), sends_results_(sends_results) {}

  absl::StatusOr<ModelDescription> Describe(const std::string& model) override {
    if (absl::Status status = Obey("describe"); !status.ok()) return status;
    if (!std::ifstream(model + "/model_index.json").good()) {
      return absl::NotFoundError(absl::StrCat("model: '", model, "' has no model_index.json"));
    }
    ModelDescription description;
    description.pipeline = "FakePipeline";
    description.family = "fake";
    description.libraries = "none";
    description.digest = "0123456789abcdef";
    description.components = {{.name = "transformer",
                               .class_name = "Gradient",
                               .parameters = 12,
                               .bytes = 24,
                               .dtype = "bf16",
                               .files = {"transformer/model.safetensors"}}};
    description.size_multiple = 8;
    description.min_size = 8;
    description.max_size = 2048;
    description.default_height = description.default_width = 64;
    description.default_steps = 6;
    description.max_steps = 1000;
    description.default_guidance_scale = 4;
    description.default_max_sequence_length = 24;
    description.max_sequence_length = 48;
    description.options = {prompt_option::kPrompt2, prompt_option::kTrueCfgScale, prompt_option::kClipSkip,
                           prompt_option::kSkipLayers, prompt_option::kOriginalSize};
    description.heads = 4;
    description.blocks = 10;
    TransformerShape& transformer = description.transformer;
    transformer.exchange.width = 32;
    transformer.exchange.output_features = transformer.exchange.prediction_features = 16;
    transformer.exchange.blocks.assign(10, {.kind = BlockKind::kCross});
    transformer.block_flops.assign(10, 1);
    transformer.token_side = 8;
    transformer.text_tokens = 24;
    description.default_clean_caption = true;
    description.default_sampler = "dpm++";
    description.samplers = {"ddim", "euler", "dpm++"};
    description.warnings = {"scheduler: field 'nonsense' is unknown"};
    return description;
  }

  absl::StatusOr<Loaded> Load(const LoadParameters& parameters) override {
    if (orders_.count("no-device") != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("device '", parameters.device, "' is not available"));
    }
    if (orders_.count("no-room") != 0 && serial_ && !parameters.stream_blocks) {
      return absl::ResourceExhaustedError("the model does not fit in memory");
    }
    if (absl::Status status = Obey("load"); !status.ok()) return status;
    if (const auto file = orders_.find("loads"); file != orders_.end()) {
      std::ofstream(file->second, std::ios::app) << (parameters.stream_blocks ? "load streamed" : "load") << std::endl;
    }
    caches_ = parameters.prompt_cache_bytes > 0;
    return Loaded{.seconds = 0.25, .weight_bytes = 48};
  }

  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) override {
    if (absl::Status status = Obey("start", parameters.prompt); !status.ok()) return status;
    jobs_[job] = {.parameters = parameters};
    JobStarted started;
    started.height = started.generated_height = parameters.height;
    started.width = started.generated_width = parameters.width;
    started.sampler = parameters.sampler.empty() ? "dpm++" : parameters.sampler;
    started.prompt_tokens = 3;
    started.max_sequence_length = parameters.max_sequence_length;
    started.cached = caches_ && !encoded_.insert(parameters.prompt).second;
    started.seconds = started.cached ? 0 : 0.125;
    return started;
  }

  absl::StatusOr<Stepped> Step(absl::Span<const uint64_t> jobs) override {
    const Job& first = jobs_.at(jobs[0]);
    for (const uint64_t id : jobs) {
      Job& job = jobs_.at(id);
      const std::string& prompt = job.parameters.prompt;
      if (absl::Status status = Obey(absl::StrCat("step", job.completed + 1), prompt); !status.ok()) return status;
      if (job.completed == job.parameters.steps) return absl::FailedPreconditionError("the job has no steps left");
      if (job.completed == 0) WaitAtGate(prompt);
      ++job.completed;
    }
    if (const auto time = orders_.find("step-time"); time != orders_.end()) {
      absl::SleepFor(absl::Milliseconds(std::stoi(time->second)));
    }
    return Stepped{.completed = first.completed, .seconds = 0.5, .digest = DigestOf(first)};
  }

  absl::StatusOr<Decoded> Decode(uint64_t id, RowSink rows) override {
    if (absl::Status status = Obey("decode"); !status.ok()) return status;
    const Job& job = jobs_.at(id);
    uint64_t mixed = job.parameters.seed * 31 + job.completed;
    for (unsigned char c : absl::StrCat(job.parameters.prompt, OptionsOf(job.parameters))) mixed = mixed * 131 + c;
    if (const auto salt = orders_.find("salt"); salt != orders_.end()) mixed += std::stoi(salt->second);
    std::vector<uint8_t> row(3 * static_cast<size_t>(job.parameters.width));
    for (int32_t y = 0; sends_results_ && y < job.parameters.height; ++y) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint8_t>(mixed + 2 * y + i);
      if (absl::Status status = rows(y, row); !status.ok()) return status;
    }
    return Decoded{.height = job.parameters.height, .width = job.parameters.width, .seconds = 0.0625};
  }

  absl::StatusOr<LatentValues> Latents(uint64_t id) override {
    return LatentValues{.shape = {1, 1, 2}, .values = {static_cast<double>(DigestOf(jobs_.at(id))), 1}};
  }

  absl::StatusOr<LatentValues> Predict(uint64_t, const LatentValues& latents,
                                       absl::Span<const uint64_t> beside) override {
    LatentValues prediction = latents;
    if (!beside.empty() && orders_.count("batch-drift") != 0) prediction.values[0] += 1;
    return prediction;
  }

  absl::Status EndJob(uint64_t job) override {
    jobs_.erase(job);
    return Obey("end");
  }

 private:
  struct Job {
    JobParameters parameters;
    int32_t completed = 0;
  };

  uint64_t DigestOf(const Job& job) const {
    const auto drifting = [&](const std::string& order) {
      const auto drift = orders_.find(order);
      return drift != orders_.end() && job.completed >= std::stoi(drift->second);
    };
    const bool drifts = drifting("drift") || drifting(absl::StrCat("drift-of-", job.parameters.prompt)) ||
                        (!serial_ && drifting("layout-drift"));
    return 1000 + static_cast<uint64_t>(job.completed) + (drifts ? 1000000 : 0);
  }

  void WaitAtGate(const std::string& prompt) const {
    const auto gate = orders_.find("gate");
    if (gate == orders_.end() || !absl::StrContains(prompt, "gated")) return;
    while (access(gate->second.c_str(), F_OK) != 0) absl::SleepFor(absl::Milliseconds(2));
  }

  absl::Status Obey(const std::string& call, const std::string& prompt = "") {
    auto order = orders_.find(absl::StrCat(call, "-of-", prompt));
    if (order == orders_.end()) order = orders_.find(call);
    if (order == orders_.end()) return absl::OkStatus();
    if (order->second == "error") return absl::InvalidArgumentError(absl::StrCat(call, " fails as it was told to"));
    if (order->second == "throw") throw std::runtime_error(call + " throws as it was told to\nframe #0: secret");
    if (order->second == "exhausted") throw std::bad_alloc();
    std::cerr << "fake worker: " << order->second << " in " << call << std::endl;
    if (order->second == "die") raise(SIGKILL);
    while (true) pause();
  }

  const std::map<std::string, std::string> orders_;
  const bool serial_;
  const bool sends_results_;
  std::map<uint64_t, Job> jobs_;
  bool caches_ = false;
  std::set<std::string> encoded_;  // prompts
};

int Main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  std::map<std::string, std::string> orders = ReadOrders(options["--rank"]);
  if (options["--socket"].empty()) return 2;
  if (orders.count("exit") != 0) {
    std::cerr << "fake worker: ends as it was told to" << std::endl;
    return std::stoi(orders["exit"]);
  }
  const bool lingers = !options["--linger"].empty();
  while (orders.count("mute") != 0 || (lingers && orders.count("mute-if-lingering") != 0)) pause();
  const bool first = options["--rank"].empty() || options["--rank"] == "0";
  FakeHandler handler(std::move(orders), options["--layout"], first);
  double linger = 0;
  if (lingers && !absl::SimpleAtod(options["--linger"], &linger)) return 2;
  const absl::Status status = ServeControlChannel(
      handler, {.socket_path = options["--socket"], .linger = absl::Seconds(linger), .sends_results = first});
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
