#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/json_line.h"
#include "client/layout_session.h"
#include "client/model_location.h"
#include "client/model_options.h"
#include "client/option_text.h"
#include "client/reporter.h"
#include "server/generation_request.h"

namespace tessera {
namespace {

constexpr char kPrompt[] = "a red apple on a wooden table";
constexpr int64_t kMaxRepeats = 1000;

struct BenchOptions {
  ModelOptions model;
  std::string size, steps, repeat;
  bool json = false;
};

struct Figures {
  double load_seconds = 0;
  std::vector<double> text_seconds, step_seconds, decode_seconds, image_seconds;
  uint64_t weight_bytes = 0;
  uint64_t peak_memory_bytes = 0;
  std::string layout;
  JobParameters job;
};

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

class Bench {
 public:
  Bench(const BenchOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts), reporter_(MakeReporter({.json = options.json, .quiet = true})) {}

  ExitCode Run() {
    GenerationRequest request = {.prompt = kPrompt, .seed = 1};
    int64_t repeats = 3;
    if (absl::Status status = ReadOptions(request, repeats); !status.ok()) return Fail(Stage::kOptions, status);
    absl::StatusOr<LoadParameters> placement = Placement(options_.model, "");
    if (!placement.ok()) return Fail(Stage::kOptions, placement.status());
    absl::StatusOr<WorkerSession::Options> session_options = SessionOptions(options_.model);
    if (!session_options.ok()) return Fail(Stage::kOptions, session_options.status());
    absl::StatusOr<std::string> model = FindModel(options_.model.model, options_.model.model_folders);
    if (!model.ok()) return Fail(Stage::kModel, model.status());
    placement->model = *model;
    // The text encoders are to be timed, not the cache, unless the user wants that.
    if (options_.model.prompt_cache.empty()) placement->prompt_cache_bytes = 0;

    absl::StatusOr<std::unique_ptr<WorkerSession>> session = WorkerSession::Start(*session_options, interrupts_);
    if (!session.ok()) return Fail(Stage::kModel, session.status());
    absl::StatusOr<ModelDescription> description = (*session)->Describe(*model);
    if (!description.ok()) return Fail(Stage::kModel, description.status());
    absl::StatusOr<JobParameters> job = Validate(request, *description);
    if (!job.ok()) return Fail(Stage::kOptions, job.status());
    const absl::StatusOr<LayoutStanding> standing =
        MoveToLayout(options_.model, *description, *placement, interrupts_, *reporter_, *session);
    if (!standing.ok()) return Fail(Stage::kOptions, standing.status());
    absl::StatusOr<Loaded> loaded = (*session)->Load(*placement);
    if (!loaded.ok()) return Fail(Stage::kModel, loaded.status());

    Figures figures = {.load_seconds = loaded->seconds,
                       .weight_bytes = loaded->weight_bytes,
                       .layout = LayoutText((*session)->group().layout()),
                       .job = *job};
    // One image that does not count: first touches of memory and first choices of kernels.
    for (int64_t image = -1; image < repeats; ++image) {
      std::vector<double> steps;
      WorkerSession::Listener listener;
      listener.stepped = [&](const Stepped& stepped) { steps.push_back(stepped.seconds); };
      const absl::Time start = absl::Now();
      absl::StatusOr<WorkerSession::Picture> picture = (*session)->MakeImage(*job, listener);
      if (!picture.ok()) return Fail(Stage::kJob, picture.status());
      if (image < 0) continue;
      figures.image_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
      figures.text_seconds.push_back(picture->started.seconds);
      figures.decode_seconds.push_back(picture->decode_seconds);
      figures.step_seconds.insert(figures.step_seconds.end(), steps.begin(), steps.end());
    }
    figures.peak_memory_bytes = (*session)->PeakMemoryBytes();
    if (absl::Status status = (*session)->Close(); !status.ok()) return Fail(Stage::kJob, status);
    options_.json ? PrintJson(figures, *placement) : Print(figures, *placement);
    return ExitCode::kOk;
  }

 private:
  ExitCode Fail(Stage stage, const absl::Status& status) const {
    return ReportError(*reporter_, interrupts_, stage, status);
  }

  absl::Status ReadOptions(GenerationRequest& request, int64_t& repeats) const {
    if (!options_.size.empty()) {
      absl::StatusOr<TypedSize> size = ParseSize("size", options_.size);
      if (!size.ok()) return size.status();
      request.width = size->width;
      request.height = size->height;
    }
    if (!options_.steps.empty()) {
      absl::StatusOr<int64_t> steps = ParseInteger("steps", options_.steps);
      if (!steps.ok()) return steps.status();
      request.steps = *steps;
    }
    if (!options_.repeat.empty()) {
      absl::StatusOr<int64_t> repeat = ParseInteger("repeat", options_.repeat);
      if (!repeat.ok()) return repeat.status();
      repeats = *repeat;
    }
    if (repeats >= 1 && repeats <= kMaxRepeats) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("repeat is ", repeats, "; legal is 1 to ", kMaxRepeats));
  }

  static void Print(const Figures& figures, const LoadParameters& placement) {
    std::printf("model          %s, %s on %s, %dx%d, %d steps, %zu images\n", placement.model.c_str(),
                placement.dtype.c_str(), placement.device.c_str(), figures.job.width, figures.job.height,
                figures.job.steps, figures.image_seconds.size());
    std::printf("layout         %s\n", figures.layout.c_str());
    std::printf("load           %.3f s\n", figures.load_seconds);
    std::printf("text encoding  %.4f s\n", Median(figures.text_seconds));
    std::printf("step           %.4f s least, %.4f s median\n", Least(figures.step_seconds),
                Median(figures.step_seconds));
    std::printf("decode         %.4f s\n", Median(figures.decode_seconds));
    std::printf("images/minute  %.2f\n", 60 / Median(figures.image_seconds));
    std::printf("weights        %.1f MiB\n", static_cast<double>(figures.weight_bytes) / (1 << 20));
    std::printf("peak memory    %.1f MiB (of the workers, in main memory)\n",
                static_cast<double>(figures.peak_memory_bytes) / (1 << 20));
  }

  static void PrintJson(const Figures& figures, const LoadParameters& placement) {
    PrintJsonLine({{"event", "bench"},
                   {"model", JsonText(placement.model)},
                   {"dtype", placement.dtype},
                   {"device", placement.device},
                   {"layout", figures.layout},
                   {"width", figures.job.width},
                   {"height", figures.job.height},
                   {"steps", figures.job.steps},
                   {"images", figures.image_seconds.size()},
                   {"load_seconds", figures.load_seconds},
                   {"text_seconds", Median(figures.text_seconds)},
                   {"step_seconds_least", Least(figures.step_seconds)},
                   {"step_seconds_median", Median(figures.step_seconds)},
                   {"decode_seconds", Median(figures.decode_seconds)},
                   {"images_per_minute", 60 / Median(figures.image_seconds)},
                   {"weight_bytes", figures.weight_bytes},
                   {"peak_memory_bytes", figures.peak_memory_bytes}});
  }

  const BenchOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
};

}  // namespace

CommandRun AddBench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  AddModelOption(app, options->model);
  AddText(app, {"-s,--size", "Size in pixels: WIDTHxHEIGHT (default: the model's)", "WxH"}, options->size);
  AddText(app, {"--steps", "Denoising steps (default: the model's)", "N"}, options->steps);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  AddText(app, {"--repeat", "Images to time, after one that does not count (default: 3)", "N"}, options->repeat);
  AddFlag(app, "--json", "One JSON object", options->json);
  AddWorkerOptions(app, options->model);
  SetFooter(app, "\nPrompts are encoded for every image unless --prompt-cache is given.");
  return [options](Interrupts& interrupts) { return Bench(*options, interrupts).Run(); };
}

}  // namespace tessera
