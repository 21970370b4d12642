#include "client/cli/commands/remote_generation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "base/time/steady_time.h"
#include "client/cli/option_text.h"
#include "client/cli/output/output_files.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/sent_pictures.h"
#include "server/api/proto_values.h"
#include "server/api/request_limits.h"
#include "server/image/image_file.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kFarewellTimeout = absl::Seconds(10);

// Servers take the number of previews instead of the steps between them.
int64_t PreviewsOf(std::optional<int64_t> steps, int32_t every) {
  if (!steps.has_value() || *steps < 1) return server::kMaxPartialImages;
  return std::min<int64_t>((*steps - 1) / every, server::kMaxPartialImages);
}

// Does not check values; the server does.
absl::StatusOr<v1::ImageRequest> MessageOf(const server::ImageRequest& request, const RemoteGenerationOptions& options,
                                           server::ImageFormat format) {
  if (request.width.has_value() != request.height.has_value()) {
    return absl::InvalidArgumentError("width and height go together with --server; give both, or --size");
  }
  v1::ImageRequest message = server::ToProto(request);
  message.set_n(request.count.value_or(1));
  message.set_output_format(server::OutputFormatName(format));
  message.set_model(options.model);
  // A command repeated with the same key must be the same request.
  const std::string seed = options.generation.Typed("seed");
  if ((seed.empty() || seed == kAnySeed) && !options.idempotency_key.empty()) message.clear_seed();
  if (options.preview_every > 0) message.set_partial_images(PreviewsOf(request.steps, options.preview_every));
  if (request.width.has_value()) message.set_size(absl::StrCat(*request.width, "x", *request.height));
  return message;
}

Stage StageOfRefusal(const absl::Status& refused) {
  switch (refused.code()) {
    case absl::StatusCode::kNotFound:
      return Stage::kModel;
    case absl::StatusCode::kInternal:
      return Stage::kJob;
    default:
      return Stage::kOptions;
  }
}

class RemoteGeneration {
 public:
  RemoteGeneration(const RemoteGenerationOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts) {}

  ExitCode Run() {
    const ExitCode code = Finish(reporter_, interrupts_, Execute());
    const bool unwanted = code == ExitCode::kInterrupted || code == ExitCode::kOutput;
    if (unwanted && !job_.id().empty()) CancelJob();
    return code;
  }

 private:
  absl::StatusOr<ExitCode> Execute() {
    start_ = base::SteadyNow();
    absl::StatusOr<server::ImageRequest> request = RequestOf(options_.generation);
    reporter_ = MakeReporter(
        {.json = options_.json, .quiet = options_.quiet, .images = request.ok() ? request->count.value_or(1) : 1});
    if (!request.ok()) return request.status();
    RETURN_IF_ERROR(AddSentPictures(options_.pictures, "--image", "--mask", *request));
    ASSIGN_OR_RETURN(OutputFiles files, OutputFiles::Create(options_.output, options_.overwrite));
    ASSIGN_OR_RETURN(const v1::ImageRequest message, MessageOf(*request, options_, files.format()));
    ASSIGN_OR_RETURN(ServerConnection server, ConnectionTo(options_.server, ImageClientOptions().retries));
    client_ = std::move(server.client);
    if (server.sends_key_in_clear) reporter_->OnWarning("the API key is sent unencrypted; https:// keeps it secret");
    // The folder's name may depend on values that only the server knows; it is then checked when the image arrives.
    if (options_.output.substr(0, options_.output.rfind('/') + 1).find('{') == std::string::npos) {
      RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(options_.output)));
    }
    const Interrupts::Reaction reaction(interrupts_, [this] { stop_.request_stop(); });
    RETURN_IF_ERROR(MakeImages(files, message));
    return ExitCode::kOk;
  }

  absl::Status MakeImages(const OutputFiles& files, const v1::ImageRequest& request) {
    std::optional<absl::Status> ended;
    const auto on_event = [&](const v1::JobEvent& event) {
      if (!ended.has_value()) ended = OnEvent(files, event);
      if (ended.has_value()) stop_.request_stop();
    };
    // With a key, even a random one, Generate leaves the cancellation of the job to this command.
    const absl::Status status =
        ErrorForUser(client_
                         ->Generate(request, on_event,
                                    {.stop = stop_.get_token(),
                                     .idempotency_key = options_.idempotency_key.empty() ? base::RandomId("key_")
                                                                                         : options_.idempotency_key})
                         .status());
    if (ended.has_value()) return *ended;
    return At(job_.id().empty() ? StageOfRefusal(status) : Stage::kJob, status);
  }

  // A returned status ends the command.
  std::optional<absl::Status> OnEvent(const OutputFiles& files, const v1::JobEvent& event) {
    switch (event.event_case()) {
      case v1::JobEvent::kAccepted:
        OnAccepted(event.accepted());
        break;
      case v1::JobEvent::kQueued:
        if (event.queued().position() != std::exchange(place_, event.queued().position())) {
          reporter_->OnActivity(absl::StrCat("place ", *place_, " in the server's queue"));
        }
        break;
      case v1::JobEvent::kStep:
        OnStep(event.step());
        break;
      case v1::JobEvent::kPreview:
        if (absl::Status status = ShowPreview(files, event.preview()); !status.ok()) {
          reporter_->OnWarning(absl::StrCat("no preview: ", std::string(status.message())));
        }
        break;
      case v1::JobEvent::kImage:
        if (absl::Status written = WriteImage(files, event.image()); !written.ok()) return written;
        break;
      case v1::JobEvent::kEnded:
        return OnEnded(event.ended());
      default:
        break;
    }
    return std::nullopt;
  }

  void OnAccepted(const v1::Job& job) {
    job_ = job;
    reporter_->OnActivity(absl::StrCat("the server has accepted job ", job_.id()));
    for (const std::string& warning : job_.warnings()) reporter_->OnWarning(PrintableText(warning));
    image_start_ = step_start_ = base::SteadyNow();
  }

  void OnStep(const v1::JobEvent::Step& step) {
    const absl::Duration now = base::SteadyNow();
    reporter_->OnStep(step.image(), step.steps(),
                      {.completed = step.step(), .seconds = absl::ToDoubleSeconds(now - step_start_)});
    step_start_ = now;
    steps_[step.image()] = step.step();
  }

  absl::Status OnEnded(const v1::Job& job) {
    if (job.state() == v1::JOB_STATE_CANCELLED) {
      return At(Stage::kJob, absl::AbortedError("the job was cancelled on the server"));
    }
    if (job.state() != v1::JOB_STATE_DONE) {
      const std::string reason = PrintableText(job.error().message());
      return At(Stage::kJob, absl::InternalError(reason.empty() ? "the job failed" : reason));
    }
    if (static_cast<int64_t>(written_.size()) != job.n()) {
      return At(Stage::kJob, absl::InternalError(absl::StrCat("the server ended the job with ", written_.size(),
                                                              " images of ", job.n())));
    }
    reporter_->OnDone(job.n(), absl::ToDoubleSeconds(base::SteadyNow() - start_), 0);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> NameFor(const OutputFiles& files, int64_t index, uint64_t seed, int width,
                                      int height) const {
    return files.NameFor({.index = index,
                          .seed = seed,
                          .prompt = options_.generation.Typed("prompt"),
                          .width = width,
                          .height = height,
                          .model = PrintableText(job_.model()),
                          .steps = job_.num_inference_steps()});
  }

  // Writes the preview to the folder of the future image.
  absl::Status ShowPreview(const OutputFiles& files, const v1::JobEvent::Preview& preview) {
    if (written_.contains(preview.image())) return absl::OkStatus();
    ASSIGN_OR_RETURN(const server::DecodedImage decoded, server::DecodeImage(preview.file()));
    std::unique_ptr<PreviewFile>& file = previews_[preview.image()];
    if (file == nullptr) {
      ASSIGN_OR_RETURN(const std::string name,
                       NameFor(files, preview.image(), job_.seed() + preview.image(), job_.width(), job_.height()));
      file = std::make_unique<PreviewFile>(name);
    }
    RETURN_IF_ERROR(file->Write(decoded.image));
    reporter_->OnPreview(preview.image(), steps_[preview.image()], file->path());
    return absl::OkStatus();
  }

  absl::Status WriteImage(const OutputFiles& files, const v1::Image& image) {
    const absl::StatusOr<server::DecodedImage> decoded = server::DecodeImage(image.file());
    if (!decoded.ok() || decoded->format != files.format()) {
      return At(Stage::kJob,
                absl::InternalError(absl::StrCat("the server did not send a ",
                                                 std::string(server::ImageFormatName(files.format())), " image")));
    }
    const int width = decoded->image.width, height = decoded->image.height;
    ASSIGN_OR_RETURN(std::string name, NameFor(files, image.index(), image.seed(), width, height));
    RETURN_IF_ERROR(At(Stage::kOutput, OutputFiles::CheckFolder(name)));
    ASSIGN_OR_RETURN(const OutputFiles::Written written, At(Stage::kOutput, files.WriteEncoded(name, image.file())));
    written_.insert(image.index());
    previews_.erase(image.index());
    const absl::Duration now = base::SteadyNow();
    PictureEvent picture;
    picture.image = image.index();
    picture.seed = image.seed();
    picture.steps = job_.num_inference_steps();
    picture.width = width;
    picture.height = height;
    picture.path = written.path;
    picture.lossless = job_.lossless();
    picture.bytes = written.bytes;
    picture.seconds = absl::ToDoubleSeconds(now - image_start_);
    reporter_->OnImage(picture);
    image_start_ = now;
    return absl::OkStatus();
  }

  // A second interruption ends the process during this call.
  void CancelJob() const {
    const absl::Status status = ErrorForUser(client_->Cancel(job_.id(), {.timeout = kFarewellTimeout}).status());
    if (!status.ok()) {
      reporter_->OnWarning(absl::StrCat(
          "job ", job_.id(), " may still be running: it could not be cancelled: ", std::string(status.message())));
    }
  }

  const RemoteGenerationOptions& options_;
  Interrupts& interrupts_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<ImageClient> client_;
  std::stop_source stop_;  // stops the generation
  absl::Duration start_, image_start_, step_start_;
  v1::Job job_;  // as accepted
  std::optional<int64_t> place_;
  // The following are keyed by the image's number.
  std::set<int64_t> written_;
  std::map<int64_t, int32_t> steps_;  // completed steps
  std::map<int64_t, std::unique_ptr<PreviewFile>> previews_;
};

}  // namespace

ExitCode GenerateRemotely(const RemoteGenerationOptions& options, Interrupts& interrupts) {
  return RemoteGeneration(options, interrupts).Run();
}

}  // namespace tessera::client
