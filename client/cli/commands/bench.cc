#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "client/cli/command.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/layout_session.h"
#include "client/cli/session/model_options.h"
#include "control/parameters/job_parameters.h"
#include "server/api/generation_request.h"
#include "server/api/request_values.h"
#include "server/verification/probe_pictures.h"
#include "server/verification/verification.h"

namespace tessera::client {
namespace {

constexpr int64_t kMaxRepeats = 1000;
constexpr int64_t kMaxBatch = 64;

struct BenchOptions {
  ModelOptions model;
  std::string prompt, size, steps, repeat, batch;
  bool json = false;
};

struct Counts {
  int64_t repeats = 3;
  int64_t batch = 1;  // images per batch
};

struct Figures {
  double load_seconds = 0;
  std::vector<double> text_seconds, step_seconds, decode_seconds;
  Counts counts;
  double seconds = 0;  // for all images
  uint64_t weight_bytes = 0;
  uint64_t peak_memory_bytes = 0;
  std::string layout;
  control::JobParameters job;

  int64_t images() const { return counts.repeats * counts.batch; }
  double images_per_minute() const { return 60 * static_cast<double>(images()) / seconds; }
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

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    server::ImageRequest request = {.seed = 1};
    Counts counts;
    RETURN_IF_ERROR(ReadOptions(request, counts));
    ASSIGN_OR_RETURN(control::LoadParameters placement, RequestedLoad(options_.model, ""));
    ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(placement.model, At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));
    // Measure the text encoders and not the cache, unless the user wants the cache.
    if (options_.model.prompt_cache.empty()) placement.prompt_cache_bytes = 0;

    ASSIGN_OR_RETURN(std::unique_ptr<WorkerSession> session,
                     At(Stage::kModel, WorkerSession::Start(session_options, interrupts_)));
    ASSIGN_OR_RETURN(control::ModelDescription description,
                     At(Stage::kModel, session->Describe(placement.model, placement.files)));
    request.prompt = options_.prompt.empty() ? server::ProbePrompt(description) : options_.prompt;
    ASSIGN_OR_RETURN(control::JobParameters job, server::Validate(request, description));
    ASSIGN_OR_RETURN(const server::ProbePictures made_up, server::ProbePictures::For(description.pictures));
    job.images = made_up.images();
    job.mask = made_up.mask();
    ASSIGN_OR_RETURN(const LayoutStanding standing,
                     MoveToLayout(options_.model, description, placement, interrupts_, *reporter_, session));
    ASSIGN_OR_RETURN(control::Loaded loaded, At(Stage::kModel, session->Load(placement)));

    Figures figures = {.load_seconds = loaded.seconds,
                       .counts = counts,
                       .weight_bytes = loaded.weight_bytes,
                       .layout = parallel::LayoutText(session->group().layout()),
                       .job = job};
    std::vector<control::JobParameters> jobs(static_cast<size_t>(counts.batch), job);
    for (size_t i = 0; i < jobs.size(); ++i) jobs[i].seed += i;
    // The first round does not count: it includes first touches of memory and the selection of kernels.
    for (int64_t round = -1; round < counts.repeats; ++round) {
      std::vector<double> steps;
      WorkerSession::Listener listener;
      listener.stepped = [&](const control::Stepped& stepped) { steps.push_back(stepped.seconds); };
      const absl::Duration start = base::SteadyNow();
      ASSIGN_OR_RETURN(std::vector<WorkerSession::Picture> pictures,
                       At(Stage::kJob, session->MakeImages(jobs, listener)));
      if (round < 0) continue;
      figures.seconds += absl::ToDoubleSeconds(base::SteadyNow() - start);
      for (const WorkerSession::Picture& picture : pictures) {
        figures.text_seconds.push_back(picture.started.seconds);
        figures.decode_seconds.push_back(picture.decode_seconds);
      }
      figures.step_seconds.insert(figures.step_seconds.end(), steps.begin(), steps.end());
    }
    figures.peak_memory_bytes = session->PeakMemoryBytes();
    RETURN_IF_ERROR(At(Stage::kJob, session->Close()));
    options_.json ? PrintJson(figures, placement) : Print(figures, placement);
    return ExitCode::kOk;
  }

  absl::Status ReadOptions(server::ImageRequest& request, Counts& counts) const {
    if (!options_.size.empty()) {
      ASSIGN_OR_RETURN(TypedSize size, ParseSize("size", options_.size));
      request.width = size.width;
      request.height = size.height;
    }
    if (!options_.steps.empty()) {
      ASSIGN_OR_RETURN(request.steps, ParseInteger("steps", options_.steps));
    }
    RETURN_IF_ERROR(ReadCount("repeat", options_.repeat, kMaxRepeats, counts.repeats));
    return ReadCount("batch", options_.batch, kMaxBatch, counts.batch);
  }

  static absl::Status ReadCount(const std::string& name, const std::string& text, int64_t most, int64_t& count) {
    if (text.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(count, ParseInteger(name, text));
    if (count >= 1 && count <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", count, "; valid values are 1 to ", most));
  }

  static void Print(const Figures& figures, const control::LoadParameters& placement) {
    std::printf("model          %s, %s on %s, %dx%d, %d steps, %lld images in batches of %lld\n",
                placement.model.c_str(), base::EnumName(placement.dtype), placement.device.c_str(), figures.job.width,
                figures.job.height, figures.job.steps, static_cast<long long>(figures.images()),
                static_cast<long long>(figures.counts.batch));
    std::printf("layout         %s\n", figures.layout.c_str());
    std::printf("load           %.3f s\n", figures.load_seconds);
    std::printf("text encoding  %.4f s\n", Median(figures.text_seconds));
    std::printf("step           %.4f s least, %.4f s median\n", Least(figures.step_seconds),
                Median(figures.step_seconds));
    std::printf("decode         %.4f s\n", Median(figures.decode_seconds));
    std::printf("images/minute  %.2f\n", figures.images_per_minute());
    std::printf("weights        %.1f MiB\n", static_cast<double>(figures.weight_bytes) / (1 << 20));
    std::printf("peak memory    %.1f MiB (of the workers, in main memory)\n",
                static_cast<double>(figures.peak_memory_bytes) / (1 << 20));
  }

  static void PrintJson(const Figures& figures, const control::LoadParameters& placement) {
    PrintJsonLine({{"event", "bench"},
                   {"model", JsonText(placement.model)},
                   {"dtype", base::EnumName(placement.dtype)},
                   {"device", placement.device},
                   {"layout", figures.layout},
                   {"width", figures.job.width},
                   {"height", figures.job.height},
                   {"steps", figures.job.steps},
                   {"images", figures.images()},
                   {"batch", figures.counts.batch},
                   {"load_seconds", figures.load_seconds},
                   {"text_seconds", Median(figures.text_seconds)},
                   {"step_seconds_least", Least(figures.step_seconds)},
                   {"step_seconds_median", Median(figures.step_seconds)},
                   {"decode_seconds", Median(figures.decode_seconds)},
                   {"images_per_minute", figures.images_per_minute()},
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
  AddComponentOptions(app, options->model.files);
  BeginGroup(app, "Image");
  AddText(app, {"--prompt", "What the images show (default: one that every model understands)"}, options->prompt);
  AddText(app, {"-s,--size", "Size in pixels: WIDTHxHEIGHT (default: the model's)", "WxH"}, options->size);
  AddText(app, {"--steps", "Denoising steps (default: the model's)", "N"}, options->steps);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  BeginGroup(app, "Measurement");
  AddText(app, {"--repeat", "Images (or batches) to time, after one for warm-up (default: 3)", "N"}, options->repeat);
  AddText(app, {"--batch", "Images that are denoised together (default: 1)", "N"}, options->batch);
  AddFlag(app, "--json", "One JSON object", options->json);
  AddWorkerOptions(app, options->model);
  SetFooter(app, "\nPrompts are encoded for every image unless --prompt-cache is given.");
  return [options](Interrupts& interrupts) { return Bench(*options, interrupts).Run(); };
}

}  // namespace tessera::client
