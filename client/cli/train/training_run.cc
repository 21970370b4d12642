#include "client/cli/train/training_run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/time/steady_time.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/picture_files.h"
#include "client/cli/output/contact_sheet.h"
#include "client/cli/output/output_files.h"
#include "client/cli/output/reporter.h"
#include "client/cli/train/adapter_publisher.h"
#include "client/cli/train/cut_captions.h"
#include "client/cli/train/product_rate.h"
#include "client/cli/train/training_log.h"
#include "client/cli/train/training_plan.h"
#include "client/cli/train/training_reporter.h"
#include "control/host/device.h"
#include "control/model/model_description.h"
#include "control/parameters/load_parameters.h"
#include "control/pictures/picture_input.h"
#include "control/training/config.h"
#include "control/training/dataset.h"
#include "control/training/model_training.h"
#include "control/training/trainable_model.h"
#include "server/api/generation_request.h"
#include "server/api/prompt_tags.h"
#include "server/api/request_fields.h"
#include "server/metadata/image_metadata.h"
#include "server/metadata/parameters_text.h"
#include "server/workers/layout_choice.h"

namespace tessera::client {
namespace {

// Samples encoded per command: few, so that progress is shown and an interruption is noticed.
constexpr int64_t kSamplesAtOnce = 8;

// More rows do not make a product faster.
constexpr int64_t kMostMeasuredRows = 1024;

parallel::Layout LayoutOf(const control::TrainConfig& config) {
  parallel::Layout layout = {.mesh = config.parallelism.mesh()};
  layout.mesh.data = 1;
  return layout;
}

// Ratio of a loss to its running mean above which a step is reported.
constexpr double kReportedLossRatio = 1000;

class TrainingRun {
 public:
  TrainingRun(const TrainingRunOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        reporter_(MakeReporter({.json = options.json, .quiet = options.quiet})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    const absl::Duration begin = base::SteadyNow();
    ASSIGN_OR_RETURN(config_, Configuration());
    ASSIGN_OR_RETURN(load_, RequestedLoad(options_.model, ""));
    ASSIGN_OR_RETURN(load_.model, At(Stage::kModel, FindModel(config_.model, options_.model.model_folders)));
    ASSIGN_OR_RETURN(load_.dtype, DtypeOf(config_.train.dtype));
    load_.training = true;
    load_.quantize = config_.train.quantize;
    load_.blocks_to_swap = static_cast<int32_t>(config_.train.blocks_to_swap);
    RETURN_IF_ERROR(Describe());
    ASSIGN_OR_RETURN(const std::vector<control::JobParameters> samples, Samples());
    if (options_.dry_run) return PrintThePlan();
    RETURN_IF_ERROR(CheckNames());
    RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(config_.output + "/checkpoint")));
    if (!config_.publish.name.empty()) {
      ASSIGN_OR_RETURN(publisher_, AdapterPublisher::Create(config_.publish));
    }
    RETURN_IF_ERROR(StartSession());
    ASSIGN_OR_RETURN(const control::Loaded loaded, At(Stage::kModel, session_->Load(load_)));
    ASSIGN_OR_RETURN(const control::TrainingStarted started,
                     Explained(session_->group().Call(control::TrainingStart{
                         .config = control::TrainConfigJson(config_), .checkpoint = options_.resume})));
    TrainingReporter progress(
        {.json = options_.json,
         .quiet = options_.quiet,
         .steps = config_.train.steps,
         .images_of_a_step = config_.train.batch_size * config_.train.gradient_accumulation_steps},
        *reporter_);
    progress.OnStarted(started, loaded.seconds);
    checkpoint_ = started.checkpoint;
    const bool trained = started.step == config_.train.steps;  // but the result may not be exported yet
    if (!trained) RETURN_IF_ERROR(Prepare(progress));
    OpenLog(started.step);
    ASSIGN_OR_RETURN(const int64_t step, Train(started.step, samples, progress));
    const bool complete = step == config_.train.steps;
    if (step > started.step || trained) RETURN_IF_ERROR(Save(step, complete, progress));
    if (complete) RETURN_IF_ERROR(Publish(step, progress));
    const uint64_t peak_memory_bytes = session_->PeakMemoryBytes();
    RETURN_IF_ERROR(At(Stage::kJob, session_->Close()));
    progress.OnDone(step, absl::ToDoubleSeconds(base::SteadyNow() - begin), peak_memory_bytes);
    return complete ? ExitCode::kOk : ExitCode::kInterrupted;
  }

  absl::StatusOr<control::TrainConfig> Configuration() const {
    absl::StatusOr<control::TrainConfig> config = control::LoadTrainConfig(options_.config);
    if (!absl::IsNotFound(config.status())) return config;
    return absl::NotFoundError(
        absl::StrCat(std::string(config.status().message()), "; tessera train init writes a configuration"));
  }

  static absl::StatusOr<control::Dtype> DtypeOf(control::TrainDtype dtype) {
    const std::optional<control::Dtype> found = base::EnumOf<control::Dtype>(base::EnumName(dtype));
    if (!found.has_value()) return absl::InternalError("a training dtype that no model has");
    return *found;
  }

  // Describes the model and checks that it can be trained on that layout.
  absl::Status Describe() {
    ASSIGN_OR_RETURN(const WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(description_,
                     At(Stage::kModel, WorkerSession::DescribeAlone(session_options, interrupts_, load_.model)));
    RETURN_IF_ERROR(control::CheckTrainable(description_.pictures));
    RETURN_IF_ERROR(control::CheckDistillation(config_, description_));
    RETURN_IF_ERROR(control::CheckBlocksToSwap(config_, description_));
    RETURN_IF_ERROR(control::CheckPredictionType(config_, description_));
    RETURN_IF_ERROR(control::CheckTargetModules(config_, description_));
    return parallel::CheckLayout(LayoutOf(config_), server::LayoutModelOf(description_, load_.dtype));
  }

  // The pictures themselves are read by the workers, when the model is loaded.
  absl::Status CheckNames() const {
    const control::DatasetOptions options = control::DatasetOptionsOf(config_, description_);
    ASSIGN_OR_RETURN(const control::DatasetListing listing, control::DatasetListing::Create(options));
    return listing.CheckNames();
  }

  absl::StatusOr<ExitCode> PrintThePlan() {
    ASSIGN_OR_RETURN(const control::TrainingSet set,
                     control::ScanDatasets(control::DatasetOptionsOf(config_, description_)));
    for (const std::string& warning : set.Warnings()) reporter_->OnWarning(warning);
    RETURN_IF_ERROR(WarnOfCutCaptions(set));
    TrainingPlan plan = PlanTraining(config_, description_, set);
    RETURN_IF_ERROR(MeasureRate(plan));
    PrintPlan(plan, config_, options_.json);
    return ExitCode::kOk;
  }

  absl::Status WarnOfCutCaptions(const control::TrainingSet& set) {
    const absl::StatusOr<std::string> cut = FindCutCaptions(load_.model, set, interrupts_);
    if (absl::IsCancelled(cut.status())) return cut.status();
    if (!cut.ok()) {
      reporter_->OnWarning(absl::StrCat("captions that the model cuts are not counted: ", cut.status().message()));
    } else if (!cut->empty()) {
      reporter_->OnWarning(*cut);
    }
    return absl::OkStatus();
  }

  // A run may be planned on a machine without its device.
  absl::Status MeasureRate(TrainingPlan& plan) {
    if (plan.step_flops == 0) return absl::OkStatus();
    const absl::StatusOr<double> rate = MeasureProductRate({.dtype = base::EnumName(load_.dtype),
                                                            .device = load_.device,
                                                            .threads = load_.placement.threads,
                                                            .rows = std::min(plan.rows, kMostMeasuredRows),
                                                            .width = plan.width},
                                                           interrupts_);
    if (absl::IsCancelled(rate.status())) return rate.status();
    if (!rate.ok()) {
      reporter_->OnWarning(absl::StrCat("the time of a step is not known: ", std::string(rate.status().message())));
      return absl::OkStatus();
    }
    // Ranks on the CPU share it; each CUDA rank has a separate device.
    const bool shared = control::IsDevice(load_.device, control::DeviceKind::kCpu);
    SetRate(shared ? *rate : *rate * static_cast<double>(plan.ranks), plan);
    return absl::OkStatus();
  }

  absl::Status StartSession() {
    ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options_.model));
    session_options.layout = LayoutOf(config_);
    session_options.data = static_cast<int>(config_.parallelism.data);
    session_options.ends_at_interruption = false;
    ASSIGN_OR_RETURN(session_, At(Stage::kModel, WorkerSession::Start(session_options, interrupts_)));
    return absl::OkStatus();
  }

  // Returns the jobs for the configured sample prompts.
  absl::StatusOr<std::vector<control::JobParameters>> Samples() {
    std::vector<control::JobParameters> jobs;
    const control::TrainSample& sample = config_.sample;
    if (sample.sample_every == 0) return jobs;
    for (const std::string& prompt : sample.prompts) {
      ASSIGN_OR_RETURN(control::JobParameters job, SampleOf({.prompt = prompt, .ctrl_img = {}}));
      jobs.push_back(std::move(job));
    }
    for (const control::TrainSamplePrompt& prompt : sample.samples) {
      ASSIGN_OR_RETURN(control::JobParameters job, SampleOf(prompt));
      jobs.push_back(std::move(job));
    }
    return jobs;
  }

  absl::StatusOr<control::JobParameters> SampleOf(const control::TrainSamplePrompt& prompt) {
    const control::TrainSample& sample = config_.sample;
    const control::PictureRules& rules = description_.pictures;
    if (prompt.ctrl_img.empty() && rules.required) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the prompt ", base::QuotedValue(prompt.prompt),
          " of sample has no picture, and the model edits pictures; "
          "give it as sample.samples: [{prompt: TEXT, ctrl_img: [FILE]}], or set sample.sample_every to 0"));
    }
    if (!prompt.ctrl_img.empty() && rules.use != control::PictureInput::kReference) {
      return absl::InvalidArgumentError(absl::StrCat("the prompt ", base::QuotedValue(prompt.prompt),
                                                     " of sample has ctrl_img, and the model looks at no pictures; "
                                                     "remove it"));
    }
    server::ImageRequest request = {.prompt = prompt.prompt, .seed = static_cast<uint64_t>(sample.seed)};
    RETURN_IF_ERROR(server::Named(server::TakePromptTags({}, request), server::FieldNames::kCommandLine));
    if (sample.steps > 0) request.steps = sample.steps;
    if (sample.width > 0) request.width = sample.width;
    if (sample.height > 0) request.height = sample.height;
    if (sample.guidance_scale >= 0) request.guidance_scale = sample.guidance_scale;
    ASSIGN_OR_RETURN(GivenPictures given,
                     pictures_.Read({.images = prompt.ctrl_img, .mask = "", .strength = ""}, rules));
    server::SetSizeLike(given.images, /*has_mask=*/false, description_, request);
    ASSIGN_OR_RETURN(control::JobParameters job, server::Validate(request, description_));
    if (!given.images.empty()) picture_key_ = PictureKey();
    job.images = std::move(given.images);
    job.strength = given.strength;
    RETURN_IF_ERROR(control::CheckPictures(job, rules));
    return job;
  }

  absl::Status Prepare(TrainingReporter& progress) {
    while (!interrupts_.requested()) {
      ASSIGN_OR_RETURN(const control::SamplesPrepared prepared,
                       Explained(session_->group().Call(control::PrepareSamples{.most = kSamplesAtOnce})));
      progress.OnPrepared(prepared);
      if (prepared.prepared == prepared.samples) return absl::OkStatus();
    }
    return absl::CancelledError("interrupted");
  }

  // Returns the number of completed steps: all, or fewer after an interruption.
  absl::StatusOr<int64_t> Train(int64_t step, const std::vector<control::JobParameters>& samples,
                                TrainingReporter& progress) {
    int64_t skipped = 0;  // consecutive
    while (step < config_.train.steps && !interrupts_.requested()) {
      ASSIGN_OR_RETURN(const control::Trained trained, Explained(session_->group().Train()));
      step = trained.step;
      progress.OnTrained(trained);
      log_->OnTrained(trained);
      RETURN_IF_ERROR(CheckLoss(trained));
      skipped = trained.skipped ? skipped + 1 : 0;
      if (skipped > config_.train.max_nonfinite_steps) {
        return absl::DataLossError(absl::StrCat(
            "the loss or its gradients were not finite in ", skipped, " steps in a row; ",
            checkpoint_.empty() ? "no checkpoint was written" : absl::StrCat("the last checkpoint is ", checkpoint_),
            "; lower train.lr"));
      }
      const bool last = step == config_.train.steps;
      if (IsDue(step, config_.sample.sample_every)) RETURN_IF_ERROR(Evaluate(step, samples, progress));
      if (!last && IsDue(step, config_.publish.publish_every)) RETURN_IF_ERROR(Publish(step, progress));
      if (!last && IsDue(step, config_.save.save_every)) RETURN_IF_ERROR(Save(step, /*exports=*/false, progress));
    }
    return step;
  }

  // Reports a loss far above its running mean, and ends the run if train.max_loss_ratio requires it.
  absl::Status CheckLoss(const control::Trained& trained) {
    const double most = config_.train.max_loss_ratio;
    const bool ends = most > 0 && trained.loss_ratio > most;
    if (!ends && trained.loss_ratio <= kReportedLossRatio) return absl::OkStatus();
    const std::string text = absl::StrCat("the loss of step ", trained.step, " is ", trained.loss, ", ",
                                          trained.loss_ratio, " times its running mean");
    if (!ends) {
      reporter_->OnWarning(text);
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        text, ", and train.max_loss_ratio is ", most, "; the step was not taken, and ",
        checkpoint_.empty() ? "no checkpoint was written" : absl::StrCat("the last checkpoint is ", checkpoint_),
        "; lower train.lr, or raise train.max_loss_ratio"));
  }

  void OpenLog(int64_t first_step) {
    log_ = std::make_unique<TrainingLog>(
        TrainingLog::Options{.folder = config_.output,
                             .first_step = first_step,
                             .images_of_a_step = config_.train.batch_size * config_.train.gradient_accumulation_steps,
                             .warn = [this](const std::string& warning) { reporter_->OnWarning(warning); },
                             .now = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }});
  }

  static bool IsDue(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

  absl::Status Evaluate(int64_t step, const std::vector<control::JobParameters>& samples, TrainingReporter& progress) {
    ASSIGN_OR_RETURN(const control::TrainingEvaluated evaluated,
                     Explained(session_->group().Call(control::EvaluateTraining())));
    progress.OnEvaluated(step, evaluated);
    log_->OnEvaluated(step, evaluated);
    std::optional<ContactSheet> grid;
    for (size_t i = 0; i < samples.size(); ++i) {
      ASSIGN_OR_RETURN(const WorkerSession::Picture picture, At(Stage::kJob, session_->MakeImage(samples[i], {})));
      ASSIGN_OR_RETURN(const std::string text,
                       server::FormatParameters(server::MetadataOf(samples[i], {.sampler = picture.started.sampler,
                                                                                .model_name = ModelName(load_.model),
                                                                                .model = description_,
                                                                                .placement = load_,
                                                                                .layout = session_->group().layout(),
                                                                                .picture_key = picture_key_})));
      if (!grid) {
        grid =
            ContactSheet::Square(static_cast<int>(samples.size()), std::max(picture.image.width, picture.image.height));
      }
      grid->Put(static_cast<int>(i), picture.image);
      const std::optional<std::string> path = WritePicture(absl::StrCat(SamplesOf(step), "-", i), picture.image, text);
      if (!path) continue;
      progress.OnSample(step, *path);
      log_->OnSample(step, i, *path);
    }
    if (!grid) return absl::OkStatus();
    if (const std::optional<std::string> path = WritePicture(SamplesOf(step), grid->image(), "")) {
      progress.OnGrid(step, *path);
      log_->OnGrid(step, *path);
    }
    return absl::OkStatus();
  }

  // Returns the prefix of the file names of a step's images.
  std::string SamplesOf(int64_t step) const {
    return absl::StrCat(config_.output, "/samples/step-", absl::Dec(step, absl::kZeroPad6));
  }

  // Returns the file's path. An image that cannot be written does not end the run.
  std::optional<std::string> WritePicture(const std::string& name, const control::Frames& image,
                                          const std::string& parameters) {
    const std::string path = absl::StrCat(name, ".png");
    const absl::StatusOr<OutputFiles> files = OutputFiles::Create(path, /*overwrite=*/true);
    absl::Status status = files.status();
    if (files.ok()) {
      absl::StatusOr<OutputFiles::Written> written = files->Write(path, image, parameters);
      if (written.ok()) return std::move(written->path);
      status = written.status();
    }
    reporter_->OnWarning(absl::StrCat("no sample: ", std::string(status.message())));
    return std::nullopt;
  }

  absl::Status Save(int64_t step, bool exports, TrainingReporter& progress) {
    ASSIGN_OR_RETURN(const control::TrainingSaved saved,
                     Explained(session_->group().Call(control::SaveTraining{.exports = exports})));
    progress.OnSaved(step, saved);
    if (!saved.checkpoint.empty()) checkpoint_ = saved.checkpoint;
    log_->OnSaved(step, saved);
    if (exports && saved.exported.empty()) {
      return At(Stage::kOutput, absl::UnavailableError("the trained weights could not be written"));
    }
    return absl::OkStatus();
  }

  // An unavailable server or folder does not end the run.
  absl::Status Publish(int64_t step, TrainingReporter& progress) {
    if (publisher_ == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const control::TrainingSaved exported,
                     Explained(session_->group().Call(control::ExportTraining{.path = publisher_->path()})));
    absl::Status failed;
    if (exported.exported.empty()) {
      failed = absl::UnavailableError(absl::StrJoin(exported.warnings, "; "));
    } else if (const absl::StatusOr<Publication> published = publisher_->Load(); published.ok()) {
      progress.OnPublished(step, config_.publish.name, *published);
    } else {
      failed = published.status();
    }
    if (!failed.ok()) {
      reporter_->OnWarning(
          absl::StrCat("step ", step, " is not published and training continues: ", std::string(failed.message())));
    }
    return absl::OkStatus();
  }

  template <typename Value>
  absl::StatusOr<Value> Explained(absl::StatusOr<Value> result) {
    if (result.ok()) return result;
    return At(Stage::kJob, session_->Explain(result.status(), "the model was being trained"));
  }

  const TrainingRunOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
  control::TrainConfig config_;
  control::LoadParameters load_;
  control::ModelDescription description_;
  PictureFiles pictures_{{.parent = "", .image = "sample.samples: ctrl_img"}};  // those of samples
  std::string picture_key_;                                                     // of their names in metadata
  std::unique_ptr<WorkerSession> session_;
  std::unique_ptr<TrainingLog> log_;
  std::string checkpoint_;                       // the newest complete one; empty: none
  std::unique_ptr<AdapterPublisher> publisher_;  // null: nothing is published
};

}  // namespace

ExitCode RunTraining(const TrainingRunOptions& options, Interrupts& interrupts) {
  return TrainingRun(options, interrupts).Run();
}

}  // namespace tessera::client
