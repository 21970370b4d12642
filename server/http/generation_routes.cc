#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/api/image_request.h"
#include "server/api/job_event_pump.h"
#include "server/calls/submission.h"
#include "server/http/api_routes.h"
#include "server/http/error_response.h"
#include "server/http/image_edit_form.h"
#include "server/http/job_json.h"

namespace tessera::server {
namespace {

// One caller who waits for a generation, with or without a stream.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(const ApiContext& context, ApiCall call, AcceptedSubmission accepted, const char* events)
      : context_(context),
        caller_(call.caller),
        reply_(std::move(call.reply)),
        idempotent_(accepted.idempotent),
        answer_({.body = std::move(accepted.body),
                 .events = events,
                 .job = std::move(accepted.submitted.job),
                 .base_url = std::move(call.base_url)}) {}

  void Start() {
    if (answer_.body.stream) reply_->StartEvents();
    absl::StatusOr<std::shared_ptr<JobEventPump>> pump =
        JobEventPump::Start(context_.service, context_.pool, caller_, answer_.job.id, WatchedEvents::kResults,
                            [self = shared_from_this()](const JobEvent& event) { self->OnEvent(event); });
    if (!pump.ok()) return Fail(HttpErrorOf(pump.status()));
    reply_->OnClosed([&pool = context_.pool, self = shared_from_this(), pump = *pump] {
      pool.Post([self, pump] { self->Abandon(*pump); });
    });
  }

 private:
  void Abandon(JobEventPump& pump) {
    pump.Stop();
    CancelUnlessKept();
  }

  // A job without an idempotency key cannot be picked up again by its client.
  void CancelUnlessKept() {
    if (!idempotent_) (void)context_.service.Cancel(caller_, answer_.job.id).status();
  }

  void OnEvent(const JobEvent& event) {
    if (const auto* ended = std::get_if<EndedEvent>(&event)) return OnEnd(ended->job);
    if (const auto* released = std::get_if<ReleasedEvent>(&event)) {
      Fail(HttpErrorOf(released->reason));
      return CancelUnlessKept();
    }
    if (!answer_.body.stream) return;
    if (const auto* preview = std::get_if<PreviewEvent>(&event)) {
      if (reply_->pending_bytes() > kEnoughPending) return;
      reply_->Write(ServerSentEvent(EventName("partial_image"), PartialImageJson(answer_, *preview)));
    } else if (const auto* image = std::get_if<ImageEvent>(&event)) {
      const absl::StatusOr<base::SharedBytes> file = Open(image->image);
      if (!file.ok()) return;  // the job's end reports the error
      reply_->Write(ServerSentEvent(EventName("completed"), CompletedJson(answer_, image->image, *file)));
    }
  }

  void OnEnd(const Job& job) {
    if (job.state == JobState::kFailed) return Fail(HttpErrorOfFailedJob(job.error));
    if (job.state == JobState::kCancelled) {
      return Fail(HttpErrorOfFailedJob(absl::CancelledError("the job was cancelled")));
    }
    std::vector<base::SharedBytes> files;
    for (const FinishedImage& image : job.images) {
      absl::StatusOr<base::SharedBytes> file = Open(image);
      if (!file.ok()) return Fail(HttpErrorOf(file.status()));
      files.push_back(*std::move(file));
    }
    if (answer_.body.stream) return reply_->Finish();
    Job done = job;
    for (const std::string& warning : answer_.job.warnings) {  // those about the request's pictures are not stored
      if (std::ranges::count(done.warnings, warning) == 0) done.warnings.push_back(warning);
    }
    reply_->SendJson(200, GenerationJson(answer_, done, files));
  }

  std::string EventName(const char* what) const { return absl::StrCat(answer_.events, ".", what); }

  // Opens the file of an image; returns null if the caller wants only its link.
  absl::StatusOr<base::SharedBytes> Open(const FinishedImage& image) {
    if (answer_.body.response_format == ResponseFormat::kUrl) return base::SharedBytes();
    ASSIGN_OR_RETURN(ImageFile file, context_.service.OpenImage(caller_, image.id));
    return std::move(file.bytes);
  }

  void Fail(const HttpError& error) {
    reply_->record().error_code = error.code;
    if (!answer_.body.stream) return reply_->Send(ErrorResponse(error));
    reply_->Write(ErrorEvent(error));
    reply_->Finish();
  }

  const ApiContext context_;
  const Caller caller_;
  const std::shared_ptr<ApiReply> reply_;
  const bool idempotent_;
  const AnswerContext answer_;
};

// A picture of a form; with the fields of other clients it may be a URL.
PictureSource SourceOf(absl::string_view content, bool foreign) {
  if (foreign && IsPictureUrl(content)) return {.image_url = std::string(content)};
  return {.data = std::string(content)};
}

// Reads the body of an edit: a form, or JSON.
absl::StatusOr<GenerationBody> ReadEdit(const HttpRequest& request, absl::Span<const ForeignClient> clients) {
  if (!absl::StartsWithIgnoreCase(request.Header("content-type").value_or(""), kFormMediaType)) {
    return ReadGenerationBody(request.body, BodyKind::kEdit, clients);
  }
  const bool foreign = !clients.empty();
  ASSIGN_OR_RETURN(EditBody edit, ReadImageEditForm(request, foreign));
  GenerationBody body = std::move(edit.body);
  for (const absl::string_view image : edit.images) body.request.images.push_back(SourceOf(image, foreign));
  if (!edit.mask.empty()) body.request.mask.push_back(SourceOf(edit.mask, foreign));
  body.client_names.emplace("images", "image");
  return body;
}

// Reads the body of a submission.
absl::StatusOr<GenerationBody> ReadBody(const ApiContext& context, const ApiCall& call, BodyKind kind) {
  if (kind != BodyKind::kEdit) {
    // Clients of other servers wait for their pictures, so they send no jobs.
    const auto clients = kind == BodyKind::kGeneration ? absl::MakeConstSpan(context.options.clients)
                                                       : absl::Span<const ForeignClient>();
    return ReadGenerationBody(call.request.body, kind, clients);
  }
  ASSIGN_OR_RETURN(GenerationBody body, ReadEdit(call.request, context.options.clients));
  if (body.request.images.empty()) return FieldError("image", " is missing; an edit needs a picture");
  RETURN_IF_ERROR(NameEditModel(context.service.ListModels(), body.request));
  return body;
}

}  // namespace

absl::StatusOr<AcceptedSubmission> AcceptSubmission(const ApiContext& context, const ApiCall& call, BodyKind kind) {
  if (call.request.CountHeaders("idempotency-key") > 1) {
    return FieldError("idempotency_key", " is given more than once; send one header Idempotency-Key");
  }
  const std::optional<std::string> key = call.request.Header("idempotency-key");
  ASSIGN_OR_RETURN(GenerationBody body, ReadBody(context, call, kind));
  if (!body.ignored.empty()) call.reply->AddHeader({"Warning", IgnoredFieldsWarning(body.ignored)});
  ImageRequest request = std::exchange(body.request, {.quality = body.request.quality});  // the answer repeats it
  absl::StatusOr<Submitted> submitted =
      SubmitImageRequest(context.service, context.gate, call.caller, std::move(request), key);
  if (!submitted.ok()) return WithClientName(submitted.status(), body.client_names);
  call.reply->record().job = submitted->job.id;
  return AcceptedSubmission{.body = std::move(body), .submitted = *std::move(submitted), .idempotent = key.has_value()};
}

std::vector<ApiRoute> GenerationRoutes(const ApiContext& context) {
  const auto answer = [context](BodyKind kind, const char* events) {
    return [context, kind, events](ApiCall call) {
      absl::StatusOr<AcceptedSubmission> accepted = AcceptSubmission(context, call, kind);
      if (!accepted.ok()) return call.reply->SendError(accepted.status());
      std::make_shared<Generation>(context, std::move(call), *std::move(accepted), events)->Start();
    };
  };
  return {{.method = "POST",
           .pattern = "/v1/images/generations",
           .reads_body = true,
           .handle = answer(BodyKind::kGeneration, "image_generation")},
          {.method = "POST",
           .pattern = "/v1/images/edits",
           .reads_body = true,
           .reads_form = true,
           .most_body_bytes = context.options.picture_body_bytes,
           .handle = answer(BodyKind::kEdit, "image_edit")}};
}

}  // namespace tessera::server
