#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/run_folder.h"
#include "client/cli/batch/run_store.h"
#include "client/cli/command.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/model_options.h"
#include "client/cli/option_text.h"
#include "client/cli/output/reporter.h"
#include "client/cli/serve/served_group.h"
#include "server/api/field_checks.h"
#include "server/api/image_request.h"
#include "server/serving/durable_image_service.h"
#include "server/verification/certify.h"

namespace tessera::client {
namespace {

constexpr int32_t kMaxShards = 100000;
constexpr int64_t kMaxReplicas = 64;
// Enough for each group to have its next batch waiting, whatever its shape.
constexpr int64_t kItemsInFlight = 64;  // of each replica
constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
constexpr char kTenant[] = "batch";

struct BatchOptions {
  ModelOptions model;
  std::string input, output, format, seed, shard, replicas;
  bool retry_failed = false;
  bool quiet = false;
};

absl::StatusOr<Shard> ShardOf(const std::string& text) {
  if (text.empty()) return Shard();
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 1));
  ASSIGN_OR_RETURN(const int64_t index, ParseInteger("shard", parts.first));
  ASSIGN_OR_RETURN(const int64_t count, ParseInteger("shard", parts.second));
  if (count < 1 || count > kMaxShards || index < 0 || index >= count) {
    return server::FieldError(
        "shard", absl::StrCat(" is ", server::QuotedValue(text), "; valid values are 0/", count, " to ", count - 1, "/",
                              count, ", with 1 to ", kMaxShards, " shards"));
  }
  return Shard{.index = static_cast<int32_t>(index), .count = static_cast<int32_t>(count)};
}

// That the folder is of something else is a matter of what was asked for.
template <typename Value>
absl::StatusOr<Value> OfFolder(absl::StatusOr<Value> result) {
  if (absl::IsFailedPrecondition(result.status())) return absl::InvalidArgumentError(result.status().message());
  return At(Stage::kOutput, std::move(result));
}

// What an item is called in messages.
std::string NameOf(const BatchItem& item) { return absl::StrCat("line ", item.line); }

class Batch {
 public:
  Batch(const BatchOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts), reporter_(MakeReporter({.quiet = true})) {}

  ExitCode Run() { return Finish(reporter_, interrupts_, Execute()); }

 private:
  struct Waiting {
    BatchItem item;
    absl::Duration begun;
  };

  absl::StatusOr<ExitCode> Execute() {
    const Interrupts::Reaction reaction(interrupts_, [this] { changed_.notify_all(); });
    ASSIGN_OR_RETURN(shard_, ShardOf(options_.shard));
    std::optional<uint64_t> seed;
    if (!options_.seed.empty()) {
      ASSIGN_OR_RETURN(const int64_t number, ParseInteger("seed", options_.seed));
      if (number < 0) return server::FieldError("seed", absl::StrCat(" is ", number, "; it must not be negative"));
      seed = static_cast<uint64_t>(number);
    }
    ASSIGN_OR_RETURN(const server::CertifyPolicy certify, server::ParseCertifyPolicy(options_.model.certify));
    RETURN_IF_ERROR(CountItems());
    ASSIGN_OR_RETURN(const server::ServedGroupOptions group, GroupOf());
    ASSIGN_OR_RETURN(folder_, OfFolder(RunFolder::Open(options_.output, shard_, {.seed = seed, .model = group.name})));
    RETURN_IF_ERROR(StartService(group, certify));
    absl::Status status = MakeAll();
    service_.reset();  // gives up what still runs; all that was decoded is kept
    Progress(/*last=*/true);
    RETURN_IF_ERROR(status);
    ASSIGN_OR_RETURN(const bool whole, OfFolder(folder_->WriteManifest(items_)));
    if (!whole && shard_.count == 1) return absl::InternalError("the run has fewer items than its input");
    return failed_ == 0 ? ExitCode::kOk : ExitCode::kItemsFailed;
  }

  // Opens the input at its begin.
  absl::StatusOr<std::unique_ptr<BatchReader>> OpenInput() {
    std::optional<BatchFormat> format = BatchFormatOf(options_.input);
    if (!options_.format.empty()) {
      RETURN_IF_ERROR(server::CheckName("format", options_.format, base::EnumNames<BatchFormat>()));
      format = base::EnumOf<BatchFormat>(options_.format);
    }
    if (options_.input == "-") return std::make_unique<BatchReader>(std::cin, format);
    std::error_code error;
    if (std::filesystem::is_directory(options_.input, error)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", options_.input, "\" is a folder; give a file, or - "));
    }
    file_ = std::ifstream(options_.input, std::ios::binary);
    if (!file_) return absl::InvalidArgumentError(absl::StrCat("the file \"", options_.input, "\" cannot be read"));
    return std::make_unique<BatchReader>(file_, format);
  }

  // A file is read twice: it is worth much to know before the night how many of its lines are wrong.
  absl::Status CountItems() {
    if (options_.input == "-") return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, OpenInput());
    int64_t wrong = 0;
    std::string first;
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<BatchItem> item, reader->Next());
      if (!item.has_value()) break;
      ++items_;
      if (shard_.Has(item->index)) ++total_;
      if (!item->request.ok() && wrong++ == 0) {
        first = absl::StrCat(NameOf(*item), ": ", std::string(item->request.status().message()));
      }
    }
    if (items_ == 0) return absl::InvalidArgumentError(absl::StrCat("\"", options_.input, "\" holds no items"));
    if (wrong == items_) return absl::InvalidArgumentError(first);
    if (wrong > 0) Say(absl::StrCat(wrong, " of ", items_, " items cannot be read, the first: ", first));
    return absl::OkStatus();
  }

  absl::StatusOr<server::ServedGroupOptions> GroupOf() {
    ASSIGN_OR_RETURN(const std::string model,
                     At(Stage::kModel, FindModel(options_.model.model, options_.model.model_folders)));
    ASSIGN_OR_RETURN(control::LoadParameters load, Placement(options_.model, model));
    ASSIGN_OR_RETURN(const server::LayoutRequest layout, RequestedLayout(options_.model));
    int64_t replicas = 1;
    if (!options_.replicas.empty()) {
      ASSIGN_OR_RETURN(replicas, ParseInteger("replicas", options_.replicas));
      if (replicas < 1 || replicas > kMaxReplicas) {
        return server::FieldError("replicas", absl::StrCat(" is ", replicas, "; valid values are 1 to ", kMaxReplicas));
      }
    }
    window_ = kItemsInFlight * replicas;
    return server::ServedGroupOptions{
        .name = ModelName(model), .load = load, .devices = {load.device}, .layout = layout, .count = replicas};
  }

  absl::Status StartService(const server::ServedGroupOptions& group, server::CertifyPolicy certify) {
    server::DurableServiceOptions options = {.data_folder = folder_->service_folder(), .groups = {group}};
    options.limits.max_queued_jobs = 1 << 20;
    options.certify = certify;
    options.host_memory = MemoryOfHost;
    options.log = [](const base::LogLine& line) {
      if (line.level >= base::LogLevel::kWarning && line.event != "image_failed") Say(line.text);
    };
    options.open_store = [this]() -> absl::StatusOr<std::unique_ptr<server::JobStore>> {
      return std::make_unique<RunStore>(
          *folder_,
          RunStore::Events{.ended = [this](const std::string& key, const std::vector<RunImage>& images,
                                           const absl::Status& error) { return OnEnded(key, images, error); },
                           .disk = [this](const absl::Status& failure) { Stop(At(Stage::kOutput, failure)); }});
    };
    absl::StatusOr<std::unique_ptr<server::DurableImageService>> service = server::DurableImageService::Start(options);
    if (!service.ok()) return At(Stage::kModel, service.status());
    service_ = *std::move(service);
    return absl::OkStatus();
  }

  void Stop(const absl::Status& reason) {
    const std::lock_guard lock(mutex_);
    if (stopped_.ok()) stopped_ = reason;
    changed_.notify_all();
  }

  absl::Status MakeAll() {
    ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, OpenInput());
    begun_ = base::SteadyNow();
    const std::vector<server::ServedModel> models = service_->ListModels();
    int64_t items = 0;
    while (true) {
      ASSIGN_OR_RETURN(std::optional<BatchItem> item, reader->Next());
      if (!item.has_value()) break;
      ++items;
      if (!shard_.Has(item->index)) continue;
      ASSIGN_OR_RETURN(const RunEntry* entry, OfFolder(folder_->Find(item->index, item->digest)));
      if (entry != nullptr && (entry->error.ok() || !options_.retry_failed)) {
        ++skipped_;
        if (!entry->error.ok()) ++failed_;
        continue;
      }
      RETURN_IF_ERROR(WaitFor([this] { return static_cast<int64_t>(waiting_.size()) < window_; }));
      RETURN_IF_ERROR(SubmitItem(*item, models));
    }
    items_ = items;
    return WaitFor([this] { return waiting_.empty(); });
  }

  absl::StatusOr<server::JobRequest> RequestOf(const BatchItem& item,
                                               const std::vector<server::ServedModel>& models) const {
    RETURN_IF_ERROR(item.request.status());
    server::RequestLimits limits;
    limits.max_steps = limits.max_pixels = INT32_MAX;
    return server::ValidateImageRequest(*item.request, models, limits, SeedOfItem(folder_->seed(), item.index));
  }

  // What is wrong with the item is its own failure.
  absl::Status SubmitItem(const BatchItem& item, const std::vector<server::ServedModel>& models) {
    absl::StatusOr<server::JobRequest> request = RequestOf(item, models);
    const std::string key = absl::StrCat(item.index);
    {
      const std::lock_guard lock(mutex_);
      waiting_[key] = {.item = item, .begun = base::SteadyNow()};
    }
    absl::Status status = request.status();
    if (status.ok()) {
      request->timeout.reset();
      status =
          service_->Submit({.tenant = kTenant}, *request, server::IdempotencyKey{.key = key, .digest = item.digest})
              .status();
    }
    return status.ok() ? status : At(Stage::kOutput, OnEnded(key, {}, status));
  }

  // Until `holds`, which is asked under the lock; the reason where the run cannot go on.
  absl::Status WaitFor(const std::function<bool()>& holds) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, absl::ToChronoMilliseconds(kTick),
                          [&] { return holds() || !stopped_.ok() || interrupts_.requested(); });
        if (interrupts_.requested()) return absl::CancelledError("interrupted");
        RETURN_IF_ERROR(stopped_);
        if (holds()) return absl::OkStatus();
      }
      RETURN_IF_ERROR(CheckGroups());
      Progress(/*last=*/false);
    }
  }

  // Where no group can ever start nothing would come.
  absl::Status CheckGroups() {
    const server::ServerInfo info = service_->Info();
    const bool refused = !info.groups.empty() && std::ranges::all_of(info.groups, [](const server::GroupInfo& group) {
      return group.state == server::GroupState::kRefused;
    });
    if (!refused) return absl::OkStatus();
    return At(Stage::kModel, absl::FailedPreconditionError(info.groups[0].reason));
  }

  absl::Status OnEnded(const std::string& key, const std::vector<RunImage>& images, const absl::Status& error) {
    RunEntry entry = {.images = images, .error = error};
    {
      const std::lock_guard lock(mutex_);
      const Waiting& waiting = waiting_.at(key);
      entry.index = waiting.item.index;
      entry.item_digest = waiting.item.digest;
      entry.custom_id = waiting.item.custom_id;
      entry.seconds = absl::ToDoubleSeconds(base::SteadyNow() - waiting.begun);
    }
    RETURN_IF_ERROR(folder_->Append(entry));
    const std::lock_guard lock(mutex_);
    if (!error.ok()) {
      ++failed_;
      Say(absl::StrCat(NameOf(waiting_.at(key).item), ": ", std::string(error.message())));
    }
    images_made_ += static_cast<int64_t>(images.size());
    ++ended_;
    waiting_.erase(key);
    changed_.notify_all();
    return absl::OkStatus();
  }

  // Above the line of progress, where there is one.
  static void Say(const std::string& text) {
    std::fprintf(stderr, "%stessera: %s\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", text.c_str());
  }

  void Progress(bool last) {
    if (options_.quiet) return;
    const absl::Duration now = base::SteadyNow();
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!last && now - told_ < (terminal ? kProgressInterval : 30 * kProgressInterval)) return;
    told_ = now;
    const std::lock_guard lock(mutex_);
    const double seconds = std::max(1e-3, absl::ToDoubleSeconds(now - begun_));
    const double rate = static_cast<double>(images_made_) / seconds;
    std::string text = absl::StrCat(skipped_ + ended_, total_ > 0 ? absl::StrCat("/", total_) : "", " items");
    absl::StrAppend(&text, absl::StrFormat(", %.2f images/s", rate));
    const int64_t left = total_ - skipped_ - ended_;
    if (!last && left > 0 && ended_ > 0) {
      const absl::Duration wait = absl::Seconds(static_cast<double>(left) * seconds / static_cast<double>(ended_));
      absl::StrAppend(&text, ", ", absl::FormatDuration(absl::Trunc(wait, absl::Seconds(1))), " left");
    }
    if (failed_ > 0) absl::StrAppend(&text, ", ", failed_, " failed");
    std::fprintf(stderr, terminal && !last ? "\r\033[K%s" : terminal ? "\r\033[K%s\n" : "%s\n", text.c_str());
  }

  const BatchOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
  Shard shard_;
  std::ifstream file_;
  int64_t items_ = 0;  // of the input; 0: not known yet
  int64_t total_ = 0;  // of them, those of the shard
  int64_t window_ = 0;
  absl::Duration begun_, told_;
  std::unique_ptr<RunFolder> folder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, Waiting> waiting_;  // submitted, by key
  absl::Status stopped_;
  int64_t skipped_ = 0, ended_ = 0, failed_ = 0, images_made_ = 0;

  std::unique_ptr<server::DurableImageService> service_;  // last: it calls the others
};

}  // namespace

CommandRun AddBatch(CLI::App& app) {
  auto options = std::make_shared<BatchOptions>();
  AddText(app, {"input", "JSON lines, CSV or a prompt a line; - reads standard input", "IN"}, options->input);
  AddText(app, {"-o,--out", "Folder of the run: a new one, or that of a run to go on with it", "DIR"}, options->output);
  AddModelOption(app, options->model);
  BeginGroup(app, "Run");
  AddText(app, {"--format", "Form of the input (default: by the name, else by the first byte)", "jsonl|csv|txt"},
          options->format);
  AddText(app, {"--seed", "Seed of the run, from which items without one get theirs (default: random)", "N"},
          options->seed);
  AddText(app, {"--shard", "Make only every nth item, from the ith on, counted from 0 (default: 0/1)", "I/N"},
          options->shard);
  AddText(app, {"--replicas", "Groups of workers that make items side by side (default: 1)", "N"}, options->replicas);
  AddFlag(app, "--retry-failed", "Try again what has failed before", options->retry_failed);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  BeginGroup(app, "Output");
  AddFlag(app, "-q,--quiet", "Print no progress", options->quiet);
  return [options](Interrupts& interrupts) -> ExitCode {
    if (options->input.empty() || options->output.empty()) {
      return Finish(MakeReporter({.quiet = true}), interrupts,
                    absl::InvalidArgumentError("tessera batch takes an input and --out with a folder"));
    }
    return Batch(*options, interrupts).Run();
  };
}

}  // namespace tessera::client
