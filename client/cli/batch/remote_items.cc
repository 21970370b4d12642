#include "client/cli/batch/remote_items.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"
#include "client/cli/exit_code.h"
#include "client/cli/remote/sent_pictures.h"
#include "server/api/field_checks.h"
#include "server/api/proto_values.h"
#include "server/image/image_file.h"

namespace tessera::client {
namespace {

constexpr int64_t kJobsInFlight = 64;
constexpr int kRetries =
    2;  // retries of lost requests within the client library; further retries are made in this file
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);
constexpr absl::Duration kSayInterval = absl::Minutes(1);
constexpr int kMostLosses = 3;  // times that the server may lose a job

// Does not check values; the server does.
v1::ImageRequest MessageOf(const server::ImageRequest& request, const std::string& model, uint64_t seed) {
  v1::ImageRequest message = server::ToProto(request);
  if (!request.safety_identifier.empty()) message.set_user(request.safety_identifier);
  if (message.model().empty()) message.set_model(model);
  if (!message.has_seed()) message.set_seed(seed);
  return message;
}

// True if the server has no capacity or is temporarily unavailable.
bool IsRefusalForNow(const absl::Status& status) {
  return absl::IsUnavailable(status) ||
         (absl::IsResourceExhausted(status) && RefusalOf(status).retry_after.has_value());
}

bool IsAboutTheCaller(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// Returns the pause after `failures` failures in a row, at least as long as a full server asks for.
absl::Duration PauseAfter(const absl::Status& status, int failures) {
  const double random = static_cast<unsigned char>(base::RandomBytes(1)[0]) /
                        256.0;  // calls that failed together retry at different times
  const absl::Duration longest = std::min(kFirstPause * (int64_t{1} << std::min(failures, 10)), kLongestPause);
  const absl::Duration asked = RefusalOf(status).retry_after.value_or(absl::ZeroDuration());
  return std::max(longest * (0.5 + random / 2), asked * (1 + random / 4));
}

void WaitFor(absl::Duration pause, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, absl::ToChronoNanoseconds(pause), [] { return false; });
}

// Outage measures how long a server has been unreachable or has accepted nothing, on the steady clock.
class Outage {
 public:
  explicit Outage(absl::Duration timeout) : timeout_(timeout) {}

  void End() { since_.reset(); }
  bool IsOn() const { return since_.has_value(); }

  // Records a call that failed at `now`. Returns how long to wait before the next one; zero if the outage has exceeded
  // the timeout. Sets `say` to a message for the user.
  absl::Duration OnFailure(const absl::Status& status, absl::Duration now, absl::Duration pause, std::string& say) {
    if (!since_.has_value()) {
      since_ = now;
      if (!said_.has_value() || now - *said_ >= kSayInterval) {
        say = absl::StrCat(Text(status), "; trying again for up to ", absl::FormatDuration(timeout_));
        said_ = now;
      }
    }
    return std::clamp(*since_ + timeout_ - now, absl::ZeroDuration(), pause);
  }

  absl::Status Error(const absl::Status& status) const {
    return At(Stage::kOptions, absl::UnavailableError(absl::StrCat(Text(status), "; it did not recover within ",
                                                                   absl::FormatDuration(timeout_),
                                                                   "; run the same command again to continue")));
  }

 private:
  static std::string Text(const absl::Status& status) { return std::string(ErrorForUser(status).message()); }

  const absl::Duration timeout_;
  std::optional<absl::Duration> since_, said_;
};

Stage StageOfRefusal(const absl::Status& status) {
  return absl::IsNotFound(status) ? Stage::kModel : absl::IsInternal(status) ? Stage::kJob : Stage::kOptions;
}

class RemoteItems final : public ItemMaker {
 public:
  RemoteItems(RemoteItemsOptions options, std::unique_ptr<ImageClient> client, const v1::Model& model)
      : options_(std::move(options)),
        client_(std::move(client)),
        model_(model.id()),
        default_size_({.width = model.default_width(), .height = model.default_height()}),
        outage_(options_.timeout) {}

  ~RemoteItems() override {
    stop_.request_stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::StatusOr<RunIdentity> Identity(const std::function<absl::Status()>& /*proceed*/) const override {
    return RunIdentity{.seed = std::nullopt, .model = model_};
  }
  int64_t items_in_flight() const override { return kJobsInFlight; }
  ImageSize default_size() const override { return default_size_; }
  absl::Status Check() override { return absl::OkStatus(); }

  absl::Status Start(RunFolder& folder, Events events) override {
    folder_ = &folder;
    events_ = std::move(events);
    for (int64_t i = 0; i < kJobsInFlight; ++i) threads_.push_back(base::StartThread([this] { Work(); }));
    return absl::OkStatus();
  }

  absl::Status Submit(const BatchItem& item) override {
    server::ImageRequest request = *item.request;
    RETURN_IF_ERROR(AddSentPictures(item.pictures, "image", "mask", request));
    const std::lock_guard lock(mutex_);
    queue_.push_back(
        {.index = item.index, .request = MessageOf(request, model_, SeedOfItem(folder_->seed(), item.index))});
    changed_.notify_one();
    return absl::OkStatus();
  }

 private:
  struct Job {
    int64_t index = 0;
    v1::ImageRequest request;
  };
  // What the server has reported about a job.
  struct ReceivedEvents {
    bool accepted = false;
    std::map<int32_t, v1::Image> images;  // with their files
    std::optional<v1::Job> ended;
  };

  void Work() {
    while (true) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop_.get_token(), [this] { return !queue_.empty(); })) return;
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      Make(job);
    }
  }

  // Returns when the item or the run has ended.
  void Make(const Job& job) {
    const CallOptions call = {
        .stop = stop_.get_token(),
        .idempotency_key = absl::StrCat(folder_->id(), "-", job.index, "-", folder_->AttemptOf(job.index))};
    int losses = 0;
    int failures = 0;  // in a row
    std::optional<absl::Duration> refused_since;
    while (!stop_.stop_requested()) {
      ReceivedEvents received;
      const auto on_event = [&](const v1::JobEvent& event) { OnEvent(event, received); };
      const absl::Status status = client_->Generate(job.request, on_event, call).status();
      if (stop_.stop_requested()) return;
      if (received.ended.has_value()) return End(job, received);
      if (IsAboutTheCaller(status)) {
        return events_.stop(
            At(Stage::kOptions, absl::InvalidArgumentError(std::string(ErrorForUser(status).message()))));
      }
      if (absl::IsNotFound(status) && received.accepted && ++losses < kMostLosses) continue;
      if (!IsRefusalForNow(status)) return Report(job, {}, ErrorForUser(status));
      if (received.accepted || absl::IsResourceExhausted(status)) {
        failures = 0;
        refused_since.reset();
      }
      if (absl::IsResourceExhausted(status)) {
        OnAnswer();
      } else if (!refused_since.has_value()) {
        refused_since = base::SteadyNow();
      } else if (base::SteadyNow() - *refused_since > options_.timeout && !IsOut()) {
        return Report(job, {}, ErrorForUser(status));  // other requests succeed
      }
      Pause(status, failures++);
    }
  }

  void OnEvent(const v1::JobEvent& event, ReceivedEvents& received) {
    OnAnswer();
    if (event.has_accepted()) received.accepted = true;
    if (event.has_image()) received.images[event.image().index()] = event.image();
    if (event.has_ended()) received.ended = event.ended();
  }

  void OnAnswer() {
    const std::lock_guard lock(mutex_);
    outage_.End();
  }
  bool IsOut() {
    const std::lock_guard lock(mutex_);
    return outage_.IsOn();
  }

  void Pause(const absl::Status& status, int failures) {
    absl::Duration pause = PauseAfter(status, failures);
    std::string say;
    if (absl::IsUnavailable(status)) {
      const std::lock_guard lock(mutex_);
      pause = outage_.OnFailure(status, base::SteadyNow(), pause, say);
    }
    if (!say.empty()) events_.say(say);
    if (pause <= absl::ZeroDuration()) return events_.stop(outage_.Error(status));
    WaitFor(pause, stop_.get_token());
  }

  void End(const Job& job, const ReceivedEvents& received) {
    const v1::Job& ended = *received.ended;
    if (ended.state() == v1::JOB_STATE_CANCELLED) {
      return Report(job, {}, absl::AbortedError("the job was cancelled on the server"));
    }
    if (ended.state() != v1::JOB_STATE_DONE) {
      const auto code = static_cast<absl::StatusCode>(ended.error().code());
      const std::string reason = PrintableText(ended.error().message());
      return Report(job, {},
                    absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code,
                                 reason.empty() ? "the job failed on the server" : reason));
    }
    const bool is_whole = static_cast<int64_t>(received.images.size()) == ended.n() && !received.images.empty() &&
                          received.images.begin()->first == 0 && received.images.rbegin()->first == ended.n() - 1;
    if (!is_whole) {
      return Report(
          job, {},
          absl::InternalError(absl::StrCat("the server sent ", received.images.size(), " images of ", ended.n())));
    }
    std::vector<RunImage> images;
    for (const auto& [index, image] : received.images) {
      absl::StatusOr<RunImage> written = Write(job, image, ended.n());
      if (written.ok()) {
        images.push_back(*std::move(written));
      } else if (StageOf(written.status()) == Stage::kOutput) {
        return events_.stop(written.status());
      } else {
        return Report(job, {}, written.status());
      }
    }
    Report(job, images, absl::OkStatus());
  }

  absl::StatusOr<RunImage> Write(const Job& job, const v1::Image& image, int32_t images) {
    const absl::StatusOr<server::DecodedImage> decoded = server::DecodeImage(image.file());
    if (!decoded.ok()) {
      return At(Stage::kJob, absl::DataLossError(absl::StrCat("the server did not send an image: ",
                                                              std::string(decoded.status().message()))));
    }
    RunImage made = {.file = RunImageName(job.index, image.index(), images, decoded->format),
                     .seed = image.seed(),
                     .width = decoded->image.width,
                     .height = decoded->image.height,
                     .bytes = image.file().size(),
                     .digest = absl::BytesToHexString(base::Sha256Of(image.file()))};
    RETURN_IF_ERROR(At(Stage::kOutput, folder_->WriteImage(made.file, image.file())));
    return made;
  }

  void Report(const Job& job, const std::vector<RunImage>& images, const absl::Status& error) {
    // The server keeps the images if the disk refuses them.
    if (const absl::Status kept = events_.ended(job.index, images, error); !kept.ok()) {
      events_.stop(At(Stage::kOutput, kept));
    }
  }

  const RemoteItemsOptions options_;
  const std::unique_ptr<ImageClient> client_;
  const std::string model_;
  const ImageSize default_size_;
  RunFolder* folder_ = nullptr;
  Events events_;

  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded by mutex_.
  std::deque<Job> queue_;
  Outage outage_;  // active while no call reaches the server

  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ItemMaker>> MakeRemoteItems(const RemoteItemsOptions& options,
                                                           const std::stop_token& stop,
                                                           const std::function<void(const std::string&)>& say) {
  ASSIGN_OR_RETURN(ServerConnection server, ConnectionTo(options.server, kRetries));
  if (server.sends_key_in_clear) say("the API key is sent unencrypted; https:// keeps it secret");
  absl::StatusOr<v1::ListModelsResponse> models;
  Outage outage(options.timeout);
  for (int failures = 0;; ++failures) {
    models = server.client->ListModels({.stop = stop});
    if (!IsRefusalForNow(models.status())) break;
    std::string news;
    const absl::Duration pause =
        outage.OnFailure(models.status(), base::SteadyNow(), PauseAfter(models.status(), failures), news);
    if (!news.empty()) say(news);
    if (pause <= absl::ZeroDuration()) return outage.Error(models.status());
    WaitFor(pause, stop);
  }
  if (!models.ok()) return At(StageOfRefusal(models.status()), ErrorForUser(models.status()));
  if (models->models().empty()) return At(Stage::kModel, absl::UnavailableError("the server serves no model"));
  std::vector<std::string> valid;
  for (const v1::Model& model : models->models()) {
    if (options.model.empty() || options.model == model.id() ||
        std::ranges::find(model.aliases(), options.model) != model.aliases().end()) {
      return std::make_unique<RemoteItems>(options, std::move(server.client), model);
    }
    valid.push_back(PrintableText(model.id()));
  }
  return At(Stage::kModel, server::CheckName("model", options.model, valid));
}

}  // namespace tessera::client
