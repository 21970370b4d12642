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
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "base/time/steady_time.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/batch_plan.h"
#include "client/cli/batch/batch_progress.h"
#include "client/cli/batch/item_maker.h"
#include "client/cli/batch/item_pictures.h"
#include "client/cli/batch/local_items.h"
#include "client/cli/batch/remote_items.h"
#include "client/cli/batch/run_folder.h"
#include "client/cli/batch/run_sheet.h"
#include "client/cli/command.h"
#include "client/cli/option_text.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/server_connection.h"
#include "client/cli/session/model_options.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

constexpr int32_t kMaxShards = 100000;
constexpr double kServerTimeout = 600;  // seconds
constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

struct BatchOptions {
  ModelOptions model;
  ServerOptions server;
  std::string server_timeout;
  std::string input, output, format, seed, shard, replicas, adapter_folder, sheet;
  bool retry_failed = false;
  bool verify = false;
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

// A folder that belongs to something else is a mistake in the options.
template <typename Value>
absl::StatusOr<Value> OfFolder(absl::StatusOr<Value> result) {
  if (absl::IsFailedPrecondition(result.status())) return absl::InvalidArgumentError(result.status().message());
  return At(Stage::kOutput, std::move(result));
}

// Returns the name of an item in messages.
std::string NameOf(const BatchItem& item) { return absl::StrCat("line ", item.line); }

// Checks for options that cannot be combined.
absl::Status CheckOptions(const BatchOptions& options) {
  const ServerOptions& server = options.server;
  if (server.url.empty()) {
    if (server.api_key_file.empty() && server.ca_file.empty() && options.server_timeout.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--api-key-file, --server-ca and --server-timeout are for --server, which is not given");
  }
  std::string local = options.replicas.empty() ? LocalOption(options.model) : "--replicas";
  if (!options.adapter_folder.empty()) local = "--adapter-folder";
  if (local.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(local, " cannot be given with --server, which decides that itself"));
}

absl::StatusOr<absl::Duration> ServerTimeout(const std::string& text) {
  double seconds = kServerTimeout;
  if (!text.empty()) {
    ASSIGN_OR_RETURN(seconds, ParseNumber("server timeout", text));
  }
  if (seconds > 0 && seconds <= 1e6) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat("server timeout is ", seconds, "; valid values are more than 0 and at most 1000000 seconds"));
}

// Refuses request fields that a run without a server cannot honor, instead of ignoring them.
absl::Status CheckRequest(const server::ImageRequest& request) {
  const auto refuse = [](const char* field, int64_t value) {
    return server::FieldError(
        field, absl::StrCat(" is ", value,
                            "; a batch makes its items in the order of the input and without deadlines: leave it out, "
                            "or let a server make them (--server)"));
  };
  if (request.priority.value_or(0) != 0) return refuse("priority", *request.priority);
  if (request.deadline_ms.has_value()) return refuse("deadline_ms", *request.deadline_ms);
  return absl::OkStatus();
}

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
    const Interrupts::Reaction reaction(interrupts_, [this] {
      stop_.request_stop();
      changed_.notify_all();
    });
    RETURN_IF_ERROR(CheckOptions(options_));
    ASSIGN_OR_RETURN(shard_, ShardOf(options_.shard));
    RunIdentity identity;
    if (!options_.seed.empty()) {
      ASSIGN_OR_RETURN(identity.seed, ParseSeed(options_.seed));
    }
    ASSIGN_OR_RETURN(const absl::Duration timeout, ServerTimeout(options_.server_timeout));
    if (!options_.sheet.empty()) RETURN_IF_ERROR(CheckSheetName(options_.sheet));
    RETURN_IF_ERROR(PlanItems());
    if (options_.verify) return Verify(identity);
    if (options_.server.url.empty()) {
      ASSIGN_OR_RETURN(maker_, MakeLocalItems(options_.model, options_.replicas, options_.adapter_folder));
    } else {
      ASSIGN_OR_RETURN(maker_,
                       MakeRemoteItems({.server = options_.server, .model = options_.model.model, .timeout = timeout},
                                       stop_.get_token(), Say));
    }
    const std::optional<uint64_t> seed = identity.seed;
    ASSIGN_OR_RETURN(identity, maker_->Identity([this]() -> absl::Status {
      return interrupts_.requested() ? absl::CancelledError("interrupted") : absl::OkStatus();
    }));
    identity.seed = seed;
    ASSIGN_OR_RETURN(folder_, OfFolder(RunFolder::Open(options_.output, shard_, identity)));
    const absl::StatusOr<int64_t> items = MakeAll();
    maker_.reset();  // abandons running items; all that have ended are kept
    Progress(/*last=*/true);
    RETURN_IF_ERROR(items.status());
    ASSIGN_OR_RETURN(const bool whole, OfFolder(folder_->WriteManifest(*items)));
    if (!whole && shard_.count == 1) return absl::InternalError("the run has fewer items than its input");
    if (!options_.sheet.empty()) RETURN_IF_ERROR(DrawSheets(whole));
    return progress_.failed == 0 ? ExitCode::kOk : ExitCode::kItemsFailed;
  }

  absl::Status DrawSheets(bool whole) {
    if (!whole) {
      Say("no contact sheet: other shards have items to make; the last shard to finish draws it");
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto entries, At(Stage::kOutput, folder_->ReadJournals()));
    ASSIGN_OR_RETURN(const int sheets, At(Stage::kOutput, WriteContactSheets(options_.sheet, *folder_, entries)));
    if (sheets > 1 && !options_.quiet) Say(absl::StrCat(sheets, " contact sheets, numbered from 001"));
    return absl::OkStatus();
  }

  // Checks the files that the run has written for the shard's items, without making any.
  absl::StatusOr<ExitCode> Verify(const RunIdentity& identity) {
    std::error_code error;
    if (!std::filesystem::exists(options_.output + "/run", error)) {
      return absl::InvalidArgumentError(absl::StrCat("the folder \"", options_.output, "\" holds no run"));
    }
    ASSIGN_OR_RETURN(folder_, OfFolder(RunFolder::Open(options_.output, shard_, identity)));
    ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, OpenInput());
    int64_t images = 0, damaged = 0, missing = 0;
    std::vector<RunEntry> lost;
    while (!interrupts_.requested()) {
      ASSIGN_OR_RETURN(const std::optional<BatchItem> item, reader->Next());
      if (!item.has_value()) break;
      if (!shard_.Has(item->index)) continue;
      ASSIGN_OR_RETURN(const RunEntry* entry, OfFolder(folder_->Find(item->index, item->digest)));
      if (entry == nullptr) {
        ++missing;
        continue;
      }
      if (!entry->error.ok()) ++progress_.failed;
      ASSIGN_OR_RETURN(const std::vector<RunDamage> damage, At(Stage::kOutput, folder_->DamageOf(*entry)));
      for (const RunDamage& file : damage) Say(absl::StrCat(NameOf(*item), ": ", file.file, " ", file.what));
      if (!damage.empty()) lost.push_back(*entry);
      images += static_cast<int64_t>(entry->images.size());
      damaged += static_cast<int64_t>(damage.size());
    }
    RETURN_IF_ERROR(At(Stage::kOutput, folder_->Forget(lost)));
    if (interrupts_.requested()) return absl::CancelledError("interrupted");
    std::string text = absl::StrCat(images - damaged, " of ", images, " images are unchanged");
    if (progress_.failed > 0) absl::StrAppend(&text, ", ", progress_.failed, " items failed");
    if (missing > 0) absl::StrAppend(&text, ", ", missing, " items are not made yet");
    if (damaged + missing > 0)
      absl::StrAppend(&text, "; run the same command without --verify to make the missing ones");
    if (!options_.quiet || damaged + missing > 0) Say(text);
    return progress_.failed + damaged + missing == 0 ? ExitCode::kOk : ExitCode::kItemsFailed;
  }

  // Opens the input at its beginning.
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
    return std::make_unique<BatchReader>(file_, format, std::filesystem::path(options_.input).parent_path().string());
  }

  absl::Status ErrorOf(const BatchItem& item) const {
    RETURN_IF_ERROR(item.request.status());
    RETURN_IF_ERROR(CheckPictureFiles(item.pictures));
    return options_.server.url.empty() ? CheckRequest(*item.request) : absl::OkStatus();
  }

  // A file is read twice, so that the number of invalid lines is known before a long run.
  absl::Status PlanItems() {
    if (options_.input == "-") return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, OpenInput());
    BatchPlan& plan = plan_.emplace(shard_);
    std::string first;
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<BatchItem> item, reader->Next());
      if (!item.has_value()) break;
      const absl::Status error = ErrorOf(*item);
      plan.Add(*item, error);
      if (!error.ok() && first.empty()) first = absl::StrCat(NameOf(*item), ": ", std::string(error.message()));
    }
    progress_.total = plan.items_of_shard();
    if (plan.items() == 0) return absl::InvalidArgumentError(absl::StrCat("\"", options_.input, "\" holds no items"));
    if (plan.wrong() == plan.items()) return absl::InvalidArgumentError(first);
    if (plan.wrong() > 0) {
      Say(absl::StrCat(plan.wrong(), " of ", plan.items(), " items cannot be made and will fail, the first: ", first));
    }
    return absl::OkStatus();
  }

  // Compares the remaining images with the free disk space.
  void CompareWithDisk() {
    std::error_code error;
    const uint64_t available = std::filesystem::space(options_.output, error).available;
    if (!plan_.has_value() || error) return;
    const BatchPlan::Rest rest = plan_->RestAfter(folder_->entries(), options_.retry_failed, maker_->default_size());
    const std::string numbers = absl::StrCat(rest.items, " items to make, about ", base::ByteText(rest.bytes), "; \"",
                                             options_.output, "\" has ", base::ByteText(available), " free");
    if (rest.bytes > available) {
      Say(absl::StrCat(numbers, ": a full disk ends the run; free space and run the same command again to continue"));
    } else if (!options_.quiet) {
      Say(numbers);
    }
  }

  absl::Status StartMaker() {
    RETURN_IF_ERROR(
        maker_->Start(*folder_, {.ended = [this](int64_t index, const std::vector<RunImage>& images,
                                                 const absl::Status& error) { return OnEnded(index, images, error); },
                                 .stop = [this](const absl::Status& reason) { Stop(reason); },
                                 .say = Say}));
    CompareWithDisk();
    begun_ = base::SteadyNow();
    return absl::OkStatus();
  }

  void Stop(const absl::Status& reason) {
    const std::lock_guard lock(mutex_);
    if (stopped_.ok()) stopped_ = reason;
    changed_.notify_all();
  }

  // Makes the items and returns the number of items in the input. If all have been made, nothing is started.
  absl::StatusOr<int64_t> MakeAll() {
    ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, OpenInput());
    begun_ = base::SteadyNow();
    bool started = false;
    int64_t items = 0;
    while (true) {
      ASSIGN_OR_RETURN(std::optional<BatchItem> item, reader->Next());
      if (!item.has_value()) break;
      ++items;
      if (!shard_.Has(item->index)) continue;
      ASSIGN_OR_RETURN(const RunEntry* entry, OfFolder(folder_->Find(item->index, item->digest)));
      if (!IsToBeMade(entry, options_.retry_failed)) {
        const std::lock_guard lock(mutex_);
        ++progress_.skipped;
        if (!entry->error.ok()) ++progress_.failed;
        continue;
      }
      if (!std::exchange(started, true)) RETURN_IF_ERROR(StartMaker());
      RETURN_IF_ERROR(WaitFor([this] { return static_cast<int64_t>(waiting_.size()) < maker_->items_in_flight(); }));
      RETURN_IF_ERROR(SubmitItem(*item));
    }
    if (started) RETURN_IF_ERROR(WaitFor([this] { return waiting_.empty(); }));
    return items;
  }

  // Submits an item, waiting while no item can be made. An invalid item is recorded as failed and does not end the run.
  absl::Status SubmitItem(const BatchItem& item) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        waiting_[item.index] = {.item = item, .begun = base::SteadyNow()};
      }
      absl::Status status = ErrorOf(item);
      if (status.ok()) status = maker_->Submit(item);
      if (status.ok()) return status;
      if (!absl::IsUnavailable(status)) return At(Stage::kOutput, OnEnded(item.index, {}, status));
      {
        const std::lock_guard lock(mutex_);
        waiting_.erase(item.index);
      }
      RETURN_IF_ERROR(maker_->Check());
      RETURN_IF_ERROR(WaitFor([until = base::SteadyNow() + kTick] { return base::SteadyNow() >= until; }));
    }
  }

  // Waits until `holds`, which is called under the lock, returns true. Returns the reason if the run cannot continue.
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
      RETURN_IF_ERROR(maker_->Check());
      Progress(/*last=*/false);
    }
  }

  absl::Status OnEnded(int64_t index, const std::vector<RunImage>& images, const absl::Status& error) {
    RunEntry entry = {.index = index, .images = images, .error = error};
    {
      const std::lock_guard lock(mutex_);
      const Waiting& waiting = waiting_.at(index);
      entry.item_digest = waiting.item.digest;
      entry.custom_id = waiting.item.custom_id;
      entry.seconds = absl::ToDoubleSeconds(base::SteadyNow() - waiting.begun);
    }
    RETURN_IF_ERROR(folder_->Append(entry));
    const std::lock_guard lock(mutex_);
    if (!error.ok()) {
      ++progress_.failed;
      Say(absl::StrCat(NameOf(waiting_.at(index).item), ": ", std::string(error.message())));
    }
    progress_.images += static_cast<int64_t>(images.size());
    ++progress_.ended;
    waiting_.erase(index);
    changed_.notify_all();
    return absl::OkStatus();
  }

  // Prints above the progress line, if there is one.
  static void Say(const std::string& text) {
    std::fprintf(stderr, "%stessera: %s\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", text.c_str());
  }

  void Progress(bool last) {
    if (options_.quiet) return;
    const absl::Duration now = base::SteadyNow();
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!last && now - reported_ < (terminal ? kProgressInterval : 30 * kProgressInterval)) return;
    reported_ = now;
    const std::lock_guard lock(mutex_);
    const std::string text = progress_.Text(now - begun_);
    std::fprintf(stderr, terminal && !last ? "\r\033[K%s" : terminal ? "\r\033[K%s\n" : "%s\n", text.c_str());
  }

  const BatchOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
  std::stop_source stop_;
  Shard shard_;
  std::ifstream file_;
  std::optional<BatchPlan> plan_;  // absent for standard input
  absl::Duration begun_, reported_;
  std::unique_ptr<RunFolder> folder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<int64_t, Waiting> waiting_;  // submitted items by index
  absl::Status stopped_;
  BatchProgress progress_;

  std::unique_ptr<ItemMaker> maker_;  // last, because it calls the other members
};

}  // namespace

CommandRun AddBatch(CLI::App& app) {
  auto options = std::make_shared<BatchOptions>();
  AddText(app, {"input", "JSON lines, CSV or a prompt a line; - reads standard input", "IN"}, options->input);
  AddText(app, {"-o,--out", "Folder of the run: a new one, or that of a run to continue it", "DIR"}, options->output);
  AddModelOption(app, options->model);
  AddComponentOptions(app, options->model.files);
  BeginGroup(app, "Run");
  AddText(app, {"--format", "Form of the input (default: by the name, else by the first byte)", "jsonl|csv|txt"},
          options->format);
  AddText(app, {"--seed", "Seed of the run, from which items without one get theirs (default: random)", "N"},
          options->seed);
  AddText(app, {"--shard", "Make only every nth item, from the ith on, counted from 0 (default: 0/1)", "I/N"},
          options->shard);
  AddText(app, {"--replicas", "Groups of workers that make items in parallel (default: 1)", "N"}, options->replicas);
  AddText(app, {"--adapter-folder", "Low-rank adapters that items may name, see docs/adapters.md", "FOLDER"},
          options->adapter_folder);
  AddFlag(app, "--retry-failed", "Retry items that failed before", options->retry_failed);
  AddPlacementOptions(app, options->model);
  AddLayoutOptions(app, options->model);
  AddCertifyOption(app, options->model);
  AddServerOptions(app, options->server, /*required=*/false);
  AddText(app,
          {"--server-timeout", "With --server: seconds without an answer after which the run ends (default: 600)",
           "SECONDS"},
          options->server_timeout);
  AddText(app, {"--sheet", "When the run ends, draw thumbnails of all its images, in the order of the items", "FILE"},
          options->sheet);
  AddFlag(app, "--verify", "Make nothing; read all images and list those that are missing or changed", options->verify);
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
