#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "client/cli/command.h"
#include "client/cli/commands/remote_generation.h"
#include "client/cli/generation_options.h"
#include "client/cli/models/adapter_files.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/picture_files.h"
#include "client/cli/option_text.h"
#include "client/cli/output/generation_trace.h"
#include "client/cli/output/output_files.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/layout_session.h"
#include "client/cli/session/model_options.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "server/api/generation_request.h"
#include "server/api/prompt_tags.h"
#include "server/api/unused_parameters.h"
#include "server/image/image_file.h"
#include "server/metadata/image_metadata.h"
#include "server/metadata/parameters_text.h"

namespace tessera::client {
namespace {

struct GenerateOptions {
  ModelOptions model;
  GenerationOptions generation;
  PictureOptions pictures;
  std::string preview;
  std::string trace;
  std::string output = server::kDefaultNamePattern;
  bool overwrite = false;
  bool json = false;
  bool quiet = false;
  ServerOptions server;
  std::string idempotency_key;
};

absl::StatusOr<int32_t> PreviewInterval(const std::string& text) {
  if (text.empty()) return 0;
  ASSIGN_OR_RETURN(int64_t steps, ParseInteger("preview", text));
  if (steps < 1 || steps > 1000000) {
    return absl::InvalidArgumentError(absl::StrCat("preview is ", steps, "; valid values are 1 to 1000000 steps"));
  }
  return static_cast<int32_t>(steps);
}

class Generation {
 public:
  Generation(const GenerateOptions& options, Interrupts& interrupts) : options_(options), interrupts_(interrupts) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  absl::StatusOr<ExitCode> Execute() {
    const absl::Duration start = base::SteadyNow();
    absl::StatusOr<server::ImageRequest> request = RequestOf(options_.generation);
    reporter_ = MakeReporter(
        {.json = options_.json, .quiet = options_.quiet, .images = request.ok() ? request->count.value_or(1) : 1});
    if (!request.ok()) return request.status();
    RETURN_IF_ERROR(server::Named(server::TakePromptTags(AdapterNamesOf(request->loras), *request),
                                  server::FieldNames::kCommandLine));
    const int64_t count = request->count.value_or(1);
    ASSIGN_OR_RETURN(preview_every_, PreviewInterval(options_.preview));
    ASSIGN_OR_RETURN(OutputFiles files, OutputFiles::Create(options_.output, options_.overwrite));
    ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options_.model));
    ASSIGN_OR_RETURN(placement_, RequestedLoad(options_.model, ""));
    ASSIGN_OR_RETURN(placement_.model,
                     At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));
    // The folder's name may depend on the model's defaults; it is then checked below.
    if (std::filesystem::path(options_.output).parent_path().string().find('{') == std::string::npos) {
      RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(options_.output)));
    }

    ASSIGN_OR_RETURN(session_, At(Stage::kModel, WorkerSession::Start(session_options, interrupts_)));
    ASSIGN_OR_RETURN(description_, At(Stage::kModel, session_->Describe(placement_.model, placement_.files)));
    for (const std::string& warning : description_.warnings) reporter_->OnWarning(warning);
    ASSIGN_OR_RETURN(control::JobParameters job, JobOf(*std::move(request)));
    RETURN_IF_ERROR(OpenAdapterFiles(job.adapters));
    for (const std::string& warning : server::DropUnusedParameters(job, description_)) reporter_->OnWarning(warning);
    for (const std::string& warning : server::SizeWarnings(job, description_)) reporter_->OnWarning(warning);
    RETURN_IF_ERROR(CheckOutput(files, job, count));

    ASSIGN_OR_RETURN(standing_,
                     MoveToLayout(options_.model, description_, placement_, interrupts_, *reporter_, session_));
    const auto warn = [this](const std::string& text) { reporter_->OnWarning(text); };
    RETURN_IF_ERROR(At(Stage::kOutput, trace_.Open(options_.trace, standing_.layout.ranks(), warn)));
    ASSIGN_OR_RETURN(control::Loaded loaded, At(Stage::kModel, Load()));
    reporter_->OnLoaded(LoadedOn(standing_, description_, placement_, loaded));
    for (int64_t image = 0; image < count; ++image) {
      RETURN_IF_ERROR(MakeImage(files, job, image));
      ++job.seed;
    }
    const uint64_t peak_memory = session_->PeakMemoryBytes();
    RETURN_IF_ERROR(At(Stage::kJob, session_->Close()));
    reporter_->OnDone(count, absl::ToDoubleSeconds(base::SteadyNow() - start), peak_memory);
    return ExitCode::kOk;
  }

  // Returns the parameters of the first image, with the pictures that were given. Without a size, the image has the
  // proportions of the first one.
  absl::StatusOr<control::JobParameters> JobOf(server::ImageRequest request) {
    ASSIGN_OR_RETURN(GivenPictures given, pictures_.Read(options_.pictures, description_.pictures));
    server::SetSizeLike(given.images, !given.mask.empty(), description_, request);
    ASSIGN_OR_RETURN(control::JobParameters job, server::Validate(request, description_));
    if (!given.images.empty()) picture_key_ = PictureKey();
    job.images = std::move(given.images);
    job.mask = std::move(given.mask);
    job.strength = given.strength;
    RETURN_IF_ERROR(control::CheckPictures(job, description_.pictures));
    return job;
  }

  server::ImageOrigins OriginsOf(const std::string& sampler) const {
    return {.sampler = sampler,
            .model_name = ModelName(placement_.model),
            .model = description_,
            .placement = placement_,
            .layout = standing_.layout,
            .weights = weights_,
            .products_drift = standing_.certification.products_drift,
            .picture_key = picture_key_};
  }

  absl::StatusOr<std::string> NameFor(const OutputFiles& files, const control::JobParameters& job,
                                      int64_t image) const {
    return files.NameFor({.index = image,
                          .seed = job.seed,
                          .prompt = job.prompt,
                          .width = job.width,
                          .height = job.height,
                          .model = ModelName(placement_.model),
                          .steps = job.steps});
  }

  // Checks that every image can be written, before the weights are loaded.
  absl::Status CheckOutput(const OutputFiles& files, control::JobParameters job, int64_t count) {
    ASSIGN_OR_RETURN(std::string text, server::FormatParameters(server::MetadataOf(job, OriginsOf(job.sampler))));
    RETURN_IF_ERROR(server::CheckEncodable(files.format(), job.width, job.height, text));
    for (int64_t image = 0; image < count; ++image, ++job.seed) {
      ASSIGN_OR_RETURN(std::string name, NameFor(files, job, image));
      RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(name)));
    }
    return absl::OkStatus();
  }

  absl::Status MakeImage(const OutputFiles& files, const control::JobParameters& job, int64_t image) {
    const absl::Duration start = base::SteadyNow();
    ASSIGN_OR_RETURN(std::string name, NameFor(files, job, image));
    PreviewFile preview(name);
    WorkerSession::Listener listener;
    int32_t steps = 0;
    listener.started = [&](const control::JobStarted& started) {
      steps = started.steps;
      trace_.OnStarted(started);
      reporter_->OnStarted(image, job, started);
    };
    listener.stepped = [&](const control::Stepped& stepped) {
      trace_.OnStepped();
      reporter_->OnStep(image, steps, stepped);
    };
    listener.preview_every = preview_every_;
    listener.preview = [&](int32_t step, const control::Frames& pixels) {
      trace_.OnPreview();
      if (absl::Status status = preview.Write(pixels); !status.ok()) {
        reporter_->OnWarning(absl::StrCat("no preview: ", std::string(status.message())));
      } else {
        reporter_->OnPreview(image, step, preview.path());
      }
    };
    trace_.OnImage(image);
    absl::StatusOr<WorkerSession::Picture> picture = session_->MakeImage(job, listener);
    if (picture.status().code() == absl::StatusCode::kDataLoss && standing_.layout.ranks() > 1) {
      RETURN_IF_ERROR(At(Stage::kJob, FallBack(picture.status())));
      picture = session_->MakeImage(job, listener);
    }
    if (!picture.ok()) return At(Stage::kJob, picture.status());
    trace_.OnDecoded();
    RETURN_IF_ERROR(At(Stage::kModel, Digest()));

    ASSIGN_OR_RETURN(
        std::string text,
        At(Stage::kJob, server::FormatParameters(server::MetadataOf(job, OriginsOf(picture->started.sampler)))));
    ASSIGN_OR_RETURN(OutputFiles::Written written, At(Stage::kOutput, files.Write(name, picture->image, text)));
    trace_.OnWritten();
    reporter_->OnImage({.image = image,
                        .seed = job.seed,
                        .steps = picture->started.steps,
                        .width = picture->image.width,
                        .height = picture->image.height,
                        .path = written.path,
                        .lossless = parallel::IsLossless(standing_.layout, picture->started.steps),
                        .bytes = written.bytes,
                        .cached = picture->started.cached,
                        .options = &job.options,
                        .seconds = absl::ToDoubleSeconds(base::SteadyNow() - start),
                        .decode_seconds = picture->decode_seconds});
    return absl::OkStatus();
  }

  absl::StatusOr<control::Loaded> Load() {
    trace_.OnWorkers(session_->group().Pids());
    trace_.OnState("loading");
    ASSIGN_OR_RETURN(control::Loaded loaded, session_->Load(placement_));
    trace_.OnState("ready");
    is_digested_ = false;
    return loaded;
  }

  // Called after the first image that the loaded weights have made.
  absl::Status Digest() {
    if (std::exchange(is_digested_, true)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string weights, session_->Digest());
    if (!weights_.empty() && weights != weights_) {
      return absl::FailedPreconditionError("the model's files were replaced after the earlier images were made");
    }
    weights_ = weights;
    return absl::OkStatus();
  }

  // Called after the guard has stopped a job: revokes the layout's certificate and continues with one rank.
  absl::Status FallBack(const absl::Status& reason) {
    reporter_->OnWarning(absl::StrCat("layout ", parallel::LayoutText(standing_.layout), " is abandoned: ",
                                      std::string(reason.message()), "; one rank makes the image again"));
    const server::CertificateFolder folder(server::CertificateFolder::DefaultPath());
    if (absl::Status revoked = folder.Revoke(standing_.subject); !revoked.ok()) {
      reporter_->OnWarning(std::string(revoked.message()));
    }
    ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options_.model));
    session_.reset();
    ASSIGN_OR_RETURN(session_, WorkerSession::Start(session_options, interrupts_));
    standing_ = {};
    return Load().status();
  }

  const GenerateOptions& options_;
  Interrupts& interrupts_;
  std::unique_ptr<Reporter> reporter_;
  int32_t preview_every_ = 0;
  control::LoadParameters placement_;
  control::ModelDescription description_;
  LayoutStanding standing_;
  std::string weights_;  // digest of the loaded weights, once is_digested_
  bool is_digested_ = false;
  GenerationTrace trace_;
  PictureFiles pictures_;
  std::string picture_key_;  // empty: the images are made without pictures
  std::unique_ptr<WorkerSession> session_;
};

absl::Status CheckRemote(const GenerateOptions& options) {
  if (options.server.url.empty()) {
    return absl::InvalidArgumentError(
        "--api-key-file, --server-ca and --idempotency-key are for --server, which is not given");
  }
  const std::string local = options.trace.empty() ? LocalOption(options.model) : "--trace";
  if (!local.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(local, " cannot be given with --server, which decides that itself"));
  }
  return absl::OkStatus();
}

ExitCode Generate(const GenerateOptions& options, Interrupts& interrupts) {
  if (options.server.url.empty() && options.server.api_key_file.empty() && options.server.ca_file.empty() &&
      options.idempotency_key.empty()) {
    return Generation(options, interrupts).Run();
  }
  absl::Status status = CheckRemote(options);
  const absl::StatusOr<int32_t> preview_every = PreviewInterval(options.preview);
  status.Update(preview_every.status());
  if (!status.ok()) {
    return Finish(MakeReporter({.json = options.json}), interrupts, status);
  }
  return GenerateRemotely({.server = options.server,
                           .model = options.model.model,
                           .generation = options.generation,
                           .pictures = options.pictures,
                           .idempotency_key = options.idempotency_key,
                           .preview_every = *preview_every,
                           .output = options.output,
                           .overwrite = options.overwrite,
                           .json = options.json,
                           .quiet = options.quiet},
                          interrupts);
}

}  // namespace

CommandRun AddGenerate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  AddModelOption(app, options->model);
  AddComponentOptions(app, options->model.files);
  AddGenerationOptions(app, options->generation);
  AddPictureOptions(app, options->pictures);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  BeginGroup(app, "Output");
  AddText(app,
          {"-o,--output",
           "Name pattern ending in .png, .jpg or .webp, with {index} {seed} {prompt} {width} {height} {model} {steps} "
           "(default: {prompt}-{seed}.png)",
           "PATTERN"},
          options->output);
  AddFlag(app, "--overwrite", "Replace files that exist (default: a new name)", options->overwrite);
  AddText(app, {"--preview", "Write NAME.preview.png every so many steps", "N"}, options->preview);
  AddText(app, {"--trace", "Write a timeline that Perfetto opens, see docs/command-line.md", "FILE"}, options->trace);
  AddFlag(app, "--json", "Print events as JSON lines on standard output", options->json);
  AddFlag(app, "-q,--quiet", "Print nothing but the names of the images", options->quiet);
  AddWorkerOptions(app, options->model);
  AddServerOptions(app, options->server, /*required=*/false);
  AddText(app,
          {"--idempotency-key",
           "With --server: the same command under the same key gets the same job (default: a new one)", "KEY"},
          options->idempotency_key);
  return [options](Interrupts& interrupts) { return Generate(*options, interrupts); };
}

}  // namespace tessera::client
