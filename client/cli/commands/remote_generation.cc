#include "client/cli/commands/remote_generation.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plain_json.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/output_files.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/job_answer.h"
#include "server/api/image_request.h"

namespace tessera {
namespace {

// Puts into a body what the request says.
absl::Status Put(boost::json::object& body, const std::string& field, const std::string& text) {
  if (!text.empty()) body[field] = text;
  return absl::OkStatus();
}

absl::Status Put(boost::json::object& body, const std::string& field, const std::vector<int64_t>& values) {
  if (!values.empty()) body[field] = boost::json::array(values.begin(), values.end());
  return absl::OkStatus();
}

template <typename Value>
absl::Status Put(boost::json::object& body, const std::string& field, const std::optional<Value>& value) {
  if (!value.has_value()) return absl::OkStatus();
  if constexpr (std::is_same_v<Value, double>) {
    if (!std::isfinite(*value)) {
      return absl::InvalidArgumentError(absl::StrCat(field, " is ", *value, "; legal is a number"));
    }
  }
  body[field] = *value;
  return absl::OkStatus();
}

// A server counts previews, not the steps between them.
int64_t PreviewsOf(std::optional<int64_t> steps, int32_t every) {
  if (!steps.has_value() || *steps < 1) return kMaxPartialImages;
  return std::min<int64_t>((*steps - 1) / every, kMaxPartialImages);
}

// The body of POST /v1/jobs. Whether its values are legal is the server's business.
absl::StatusOr<std::string> BodyOf(const GenerationRequest& request, const RemoteGenerationOptions& options,
                                   ImageFormat format) {
  if (request.width.has_value() != request.height.has_value()) {
    return absl::InvalidArgumentError("width and height go together with --server; legal is both, or --size");
  }
  boost::json::object body = {
      {"prompt", request.prompt}, {"n", request.count}, {"output_format", OutputFormatName(format)}};
  absl::Status status = Put(body, "model", options.model);
  // A command that is given again under its key has to be the same request.
  if (!options.generation.Typed("seed").empty() || options.idempotency_key.empty()) body["seed"] = request.seed;
  if (options.preview_every > 0) body["partial_images"] = PreviewsOf(request.steps, options.preview_every);
  if (request.width.has_value()) body["size"] = absl::StrCat(*request.width, "x", *request.height);
  for (const RequestField& field : kRequestFields) {
    if (field.half) continue;
    VisitValue(field, request, [&](const auto& value) { status.Update(Put(body, ApiName(field), value)); });
  }
  RETURN_IF_ERROR(status);
  return PlainJson(body);
}

Stage StageOf(const absl::Status& refused) {
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
    start_ = SteadyNow();
    absl::StatusOr<GenerationRequest> request = RequestOf(options_.generation);
    reporter_ =
        MakeReporter({.json = options_.json, .quiet = options_.quiet, .images = request.ok() ? request->count : 1});
    if (!request.ok()) return Fail(Stage::kOptions, request.status());
    absl::StatusOr<OutputFiles> files = OutputFiles::Create(options_.output, options_.overwrite);
    if (!files.ok()) return Fail(Stage::kOptions, files.status());
    absl::StatusOr<std::string> body = BodyOf(*request, options_, files->format());
    if (!body.ok()) return Fail(Stage::kOptions, body.status());
    absl::StatusOr<std::unique_ptr<RemoteServer>> server = RemoteServer::Create(options_.server);
    if (!server.ok()) return Fail(Stage::kOptions, server.status());
    server_ = *std::move(server);
    if (server_->SendsKeyInClear()) reporter_->OnWarning("the API key is sent unencrypted; https:// keeps it secret");
    // The folder's name may depend on what only the server tells; then it is checked when the image is there.
    if (options_.output.substr(0, options_.output.rfind('/') + 1).find('{') == std::string::npos) {
      if (absl::Status status = OutputFiles::CheckFolder(options_.output); !status.ok()) {
        return Fail(Stage::kOutput, status);
      }
    }
    const ExitCode code = [&] {
      const Interrupts::Reaction reaction(interrupts_, [this] { server_->Interrupt(); });
      return MakeImages(*files, *body);
    }();
    const bool unwanted = code == ExitCode::kInterrupted || code == ExitCode::kOutput;
    if (unwanted && !job_.id.empty()) CancelJob();
    return code;
  }

 private:
  ExitCode Fail(Stage stage, const absl::Status& status) const {
    return ReportError(*reporter_, interrupts_, stage, status);
  }

  ExitCode MakeImages(const OutputFiles& files, const std::string& body) {
    const std::string key = options_.idempotency_key.empty() ? RandomId("key_") : options_.idempotency_key;
    const absl::StatusOr<std::string> accepted = server_->Submit("/v1/jobs", body, key);
    if (!accepted.ok()) return Fail(StageOf(accepted.status()), accepted.status());
    absl::StatusOr<JobAnswer> job = ReadJobAnswer(*accepted);
    if (!job.ok()) return Fail(Stage::kJob, job.status());
    job_ = *std::move(job);
    reporter_->OnActivity(absl::StrCat("the server has accepted job ", job_.id));
    for (const std::string& warning : job_.warnings) reporter_->OnWarning(warning);
    image_start_ = step_start_ = SteadyNow();

    std::optional<ExitCode> ended;
    for (int lost = 0; !ended.has_value();) {
      const absl::Status status =
          server_->Follow(absl::StrCat("/v1/jobs/", job_.id, "/events"), [&](const ServerEvent& event) {
            lost = 0;
            ended = OnEvent(files, event);
            return !ended.has_value() && images_to_fetch_.empty();
          });
      while (!ended.has_value() && !images_to_fetch_.empty()) {
        const ImageAnswer image = images_to_fetch_.back();
        images_to_fetch_.pop_back();
        ended = Fetch(files, image);
      }
      if (ended.has_value() || status.ok()) continue;
      // The job goes on without anybody who watches it.
      const bool again = status.code() == absl::StatusCode::kUnavailable && ++lost <= RemoteServer::kMostReconnections;
      if (!again) return Fail(Stage::kJob, status);
      if (absl::Status paused = server_->Pause(RemoteServer::kReconnectPause); !paused.ok())
        return Fail(Stage::kJob, paused);
    }
    return *ended;
  }

  // An exit code ends the command.
  std::optional<ExitCode> OnEvent(const OutputFiles& files, const ServerEvent& event) {
    if (event.name == "queued") {
      if (const std::optional<int64_t> place = QueuePlace(event.data); place.has_value() && place != place_) {
        place_ = place;
        reporter_->OnActivity(absl::StrCat("place ", *place, " in the server's queue"));
      }
    } else if (event.name == "step") {
      const absl::StatusOr<StepAnswer> step = ReadStepAnswer(event.data);
      if (!step.ok()) return Fail(Stage::kJob, step.status());
      const absl::Duration now = SteadyNow();
      reporter_->OnStep(step->image, step->steps,
                        {.completed = step->step, .seconds = absl::ToDoubleSeconds(now - step_start_)});
      step_start_ = now;
      steps_[step->image] = step->step;
    } else if (event.name == "preview") {
      const absl::StatusOr<PreviewAnswer> preview = ReadPreviewAnswer(event.data);
      if (!preview.ok()) return Fail(Stage::kJob, preview.status());
      if (absl::Status status = ShowPreview(files, *preview); !status.ok()) {
        reporter_->OnWarning(absl::StrCat("no preview: ", std::string(status.message())));
      }
    } else if (event.name == "image") {
      absl::StatusOr<ImageAnswer> image = ReadImageAnswer(event.data);
      if (!image.ok()) return Fail(Stage::kJob, image.status());
      if (!written_.contains(image->index)) images_to_fetch_.push_back(*std::move(image));
    } else if (event.name == "failed") {
      const absl::StatusOr<JobAnswer> job = ReadJobAnswer(event.data);
      return Fail(Stage::kJob, absl::InternalError(job.ok() && !job->error.empty() ? job->error : "the job failed"));
    } else if (event.name == "cancelled") {
      return Fail(Stage::kJob, absl::AbortedError("the job was cancelled on the server"));
    } else if (event.name == "done") {
      const absl::StatusOr<JobAnswer> job = ReadJobAnswer(event.data);
      if (!job.ok()) return Fail(Stage::kJob, job.status());
      if (static_cast<int64_t>(written_.size()) != job->count) {
        return Fail(Stage::kJob, absl::InternalError(absl::StrCat("the server ended the job with ", written_.size(),
                                                                  " images of ", job->count)));
      }
      reporter_->OnDone(job->count, absl::ToDoubleSeconds(SteadyNow() - start_), 0);
      return ExitCode::kOk;
    }
    return std::nullopt;
  }

  absl::StatusOr<std::string> NameFor(const OutputFiles& files, int64_t index, uint64_t seed, int width,
                                      int height) const {
    return files.NameFor({.index = index,
                          .seed = seed,
                          .prompt = options_.generation.Typed("prompt"),
                          .width = width,
                          .height = height,
                          .model = job_.model,
                          .steps = job_.steps});
  }

  // Beside where the image is going to be.
  absl::Status ShowPreview(const OutputFiles& files, const PreviewAnswer& preview) {
    if (written_.contains(preview.image)) return absl::OkStatus();
    const absl::StatusOr<DecodedImage> decoded = DecodeImage(preview.file);
    if (!decoded.ok()) return decoded.status();
    const absl::StatusOr<TypedSize> size = ParseSize("size", job_.size);
    if (!size.ok()) return size.status();
    std::unique_ptr<PreviewFile>& file = previews_[preview.image];
    if (file == nullptr) {
      const absl::StatusOr<std::string> name = NameFor(files, preview.image, job_.seed + preview.image,
                                                       static_cast<int>(size->width), static_cast<int>(size->height));
      if (!name.ok()) return name.status();
      file = std::make_unique<PreviewFile>(*name);
    }
    absl::Status status = file->Write(decoded->image);
    if (status.ok()) reporter_->OnPreview(preview.image, steps_[preview.image], file->path());
    return status;
  }

  std::optional<ExitCode> Fetch(const OutputFiles& files, const ImageAnswer& image) {
    const absl::StatusOr<std::string> bytes = server_->Call("GET", absl::StrCat("/v1/images/", image.id));
    if (!bytes.ok()) return Fail(Stage::kJob, bytes.status());
    const absl::StatusOr<DecodedImage> decoded = DecodeImage(*bytes);
    if (!decoded.ok() || decoded->format != files.format()) {
      return Fail(Stage::kJob,
                  absl::InternalError(absl::StrCat("what the server sent is no ",
                                                   std::string(ImageFormatName(files.format())), " image")));
    }
    const int width = decoded->image.width, height = decoded->image.height;
    absl::StatusOr<std::string> name = NameFor(files, image.index, image.seed, width, height);
    if (!name.ok()) return Fail(Stage::kOptions, name.status());
    if (absl::Status status = OutputFiles::CheckFolder(*name); !status.ok()) return Fail(Stage::kOutput, status);
    const absl::StatusOr<OutputFiles::Written> written = files.WriteEncoded(*name, *bytes);
    if (!written.ok()) return Fail(Stage::kOutput, written.status());
    written_.insert(image.index);
    previews_.erase(image.index);
    const absl::Duration now = SteadyNow();
    PictureEvent picture;
    picture.image = image.index;
    picture.seed = image.seed;
    picture.steps = job_.steps;
    picture.width = width;
    picture.height = height;
    picture.path = written->path;
    picture.lossless = job_.lossless;
    picture.bytes = written->bytes;
    picture.seconds = absl::ToDoubleSeconds(now - image_start_);
    reporter_->OnImage(picture);
    image_start_ = now;
    return std::nullopt;
  }

  // The server that was interrupted takes no more calls; a second interruption ends the process.
  void CancelJob() const {
    RemoteServerOptions options = options_.server;
    options.patience = absl::Seconds(10);
    const absl::StatusOr<std::unique_ptr<RemoteServer>> server = RemoteServer::Create(options);
    absl::Status status = server.status();
    if (status.ok()) status = (*server)->Call("DELETE", absl::StrCat("/v1/jobs/", job_.id)).status();
    if (!status.ok()) {
      reporter_->OnWarning(
          absl::StrCat("job ", job_.id, " may go on: it could not be cancelled: ", std::string(status.message())));
    }
  }

  const RemoteGenerationOptions& options_;
  Interrupts& interrupts_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<RemoteServer> server_;
  absl::Duration start_, image_start_, step_start_;
  JobAnswer job_;
  std::optional<int64_t> place_;
  std::vector<ImageAnswer> images_to_fetch_;
  // By the number of the image.
  std::set<int64_t> written_;
  std::map<int64_t, int32_t> steps_;  // done
  std::map<int64_t, std::unique_ptr<PreviewFile>> previews_;
};

}  // namespace

void AddServerOptions(CLI::App& app, RemoteServerOptions& options, bool required) {
  AddText(app,
          {.names = "--server",
           .help = required ? "The server, such as http://localhost:8080"
                            : "Let a server make the images, such as http://localhost:8080",
           .type = "URL",
           .required = required},
          options.url);
  AddText(app, {"--api-key-file", "File with the secret of an API key of the server", "FILE"}, options.api_key_file);
  AddText(app, {"--server-ca", "PEM file of who vouches for an https:// server (default: the system's)", "FILE"},
          options.ca_file);
}

ExitCode GenerateRemotely(const RemoteGenerationOptions& options, Interrupts& interrupts) {
  return RemoteGeneration(options, interrupts).Run();
}

}  // namespace tessera
