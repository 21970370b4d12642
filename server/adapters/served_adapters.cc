#include "server/adapters/served_adapters.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/files/file.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/parameters/adapter_use.h"
#include "server/adapters/adapter_file.h"
#include "server/api/field_checks.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr char kExtension[] = ".safetensors";
constexpr size_t kMaxLoaded = 4096;

std::string Named(const std::string& name) { return absl::StrCat("adapter '", name, "'"); }

absl::Status NotFound(const std::string& name, const std::vector<std::string>& known, const std::string& where) {
  if (known.empty()) return absl::NotFoundError(absl::StrCat(Named(name), " is unknown: ", where, " has no adapters"));
  return absl::NotFoundError(CheckName("adapter", name, known).message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedAdapters>> ServedAdapters::Open(ServedAdaptersOptions options,
                                                                     ContentStore& contents) {
  std::error_code error;
  if (!options.folder.empty() && !fs::is_directory(options.folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("the adapter folder ", QuotedValue(options.folder), " does not exist or is not a folder"));
  }
  return std::unique_ptr<ServedAdapters>(new ServedAdapters(std::move(options), contents));
}

std::vector<ServedAdapters::Found> ServedAdapters::FindFiles(const std::vector<std::string>& models) const {
  std::vector<Found> found;
  const auto look = [&](const fs::path& folder, const std::string& model) {
    std::error_code error;
    std::vector<Found> folders;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string file = entry->path().filename().string();
      const bool is_folder = entry->is_directory(error);
      if (is_folder ? !IsAdapterFolder(entry->path()) : !absl::EndsWith(file, kExtension)) continue;
      const std::string name(is_folder ? file : absl::StripSuffix(file, kExtension));
      (is_folder ? folders : found).push_back({.name = name, .model = model, .path = entry->path()});
    }
    found.insert(found.end(), folders.begin(), folders.end());
  };
  if (options_.folder.empty() || models.empty()) return found;
  look(options_.folder, models.front());
  for (const std::string& model : models) {
    if (base::IsPlainFileName(model)) look(fs::path(options_.folder) / model, model);
  }
  std::ranges::stable_sort(found, {},
                           &Found::name);  // those of the first model stay before the others, files before folders
  return found;
}

absl::StatusOr<ServedAdapter> ServedAdapters::Keep(const Found& found, bool is_new) {
  const std::string name = Named(found.name);
  absl::StatusOr<Content> kept = absl::NotFoundError("not looked for");
  if (!is_new) {
    ASSIGN_OR_RETURN(const AdapterFile file, CheckAdapterFile(found.path, name));
    kept = contents_.Find(ContentOwner::Server(), file.digest);
  }
  std::optional<ContentWriter> copy;
  if (!kept.ok()) {
    ASSIGN_OR_RETURN(ContentWriter writer,
                     contents_.Begin(ContentOwner::Server(), kMaxAdapterBytes + kMaxAdapterHeaderBytes));
    RETURN_IF_ERROR(CopyAdapterFile(found.path, name, copy.emplace(std::move(writer))));
  }
  // The check applies to the copy, even if the operator's file changes meanwhile.
  models::AdapterOrigin origin;
  if (options_.check) {
    ASSIGN_OR_RETURN(origin, options_.check(found.model, copy.has_value() ? copy->path() : kept->path, name));
  }
  if (copy.has_value()) kept = copy->Commit();
  if (!kept.ok()) return kept.status();
  if (const std::string warning = models::EmbeddingsWarning(found.name, origin.embeddings); !warning.empty()) {
    options_.log({base::LogLevel::kWarning, warning});
  }
  return ServedAdapter{
      .name = found.name, .digest = kept->digest, .bytes = kept->bytes, .step = origin.step, .added = absl::Now()};
}

void ServedAdapters::Scan(const std::vector<std::string>& models) {
  const std::lock_guard loading(loading_);
  std::set<std::string> names;
  for (const Found& found : FindFiles(models)) {
    const auto leave_out = [&](absl::string_view reason) {
      options_.log({base::LogLevel::kWarning,
                    absl::StrCat("adapter ", QuotedValue(found.name), " is left out: ", std::string(reason))});
    };
    if (!control::IsAdapterName(found.name)) {
      leave_out(control::kAdapterNameRule);
      continue;
    }
    if (!names.insert(found.name).second) {
      leave_out("another adapter has this name");
      continue;
    }
    if (names.size() > kMaxLoaded) {
      leave_out(absl::StrCat("at most ", kMaxLoaded, " adapters are valid"));
      continue;
    }
    // Adapters copied before a restart.
    const absl::StatusOr<ServedAdapter> kept = Keep(found, /*is_new=*/false);
    if (!kept.ok()) {
      leave_out(kept.status().message());
      continue;
    }
    const std::lock_guard lock(mutex_);
    loaded_[found.name] = {.model = found.model, .adapter = *kept};
  }
}

absl::StatusOr<ServedAdapters::Loaded> ServedAdapters::Load(const std::string& name,
                                                            const std::vector<std::string>& models) {
  if (options_.folder.empty()) {
    return absl::FailedPreconditionError("this server has no adapter folder; set adapter_folder in its configuration");
  }
  if (!control::IsAdapterName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the adapter name ", QuotedValue(name), " is not valid; ", control::kAdapterNameRule));
  }
  const std::lock_guard loading(loading_);
  const Found* chosen = nullptr;
  std::vector<std::string> known;
  const std::vector<Found> files = FindFiles(models);
  for (const Found& found : files) {
    if (control::IsAdapterName(found.name)) known.push_back(found.name);
    if (found.name != name) continue;
    if (chosen != nullptr && chosen->model == found.model) continue;
    if (chosen != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Named(name), " is in the adapter folder twice, for two models; give one of them another name"));
    }
    chosen = &found;
  }
  if (chosen == nullptr) return NotFound(name, known, "the adapter folder");
  ASSIGN_OR_RETURN(ServedAdapter kept, Keep(*chosen, /*is_new=*/true));
  const std::lock_guard lock(mutex_);
  if (loaded_.size() >= kMaxLoaded && !loaded_.contains(name)) {
    return absl::ResourceExhaustedError(absl::StrCat("there are ", kMaxLoaded, " adapters; more are not valid"));
  }
  const Loaded loaded = {.model = chosen->model, .adapter = std::move(kept)};
  loaded_[name] = loaded;
  return loaded;
}

absl::Status ServedAdapters::Unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (loaded_.erase(name) > 0) return absl::OkStatus();
  std::vector<std::string> known;
  for (const auto& [other, loaded] : loaded_) known.push_back(other);
  return NotFound(name, known, "this server");
}

std::vector<ServedAdapter> ServedAdapters::Of(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  std::vector<ServedAdapter> adapters;
  for (const auto& [name, loaded] : loaded_) {
    if (loaded.model == model) adapters.push_back(loaded.adapter);
  }
  return adapters;
}

absl::Status ServedAdapters::Locate(std::vector<control::AdapterUse>& adapters) {
  for (control::AdapterUse& adapter : adapters) {
    const absl::StatusOr<Content> kept = contents_.Find(ContentOwner::Server(), adapter.digest);
    if (!kept.ok()) {
      return absl::DataLossError(absl::StrCat("the bytes of ", Named(adapter.name),
                                              " that the job was accepted with (SHA-256 ", adapter.digest,
                                              ") are no longer on this server"));
    }
    adapter.file = kept->path;
    if (base::Planted("adapter_is_not_pinned")) {
      adapter.file = absl::StrCat(options_.folder, "/", adapter.name, kExtension);
    }
  }
  return absl::OkStatus();
}

std::set<std::string> ServedAdapters::Digests() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> digests;
  for (const auto& [name, loaded] : loaded_) digests.insert(loaded.adapter.digest);
  return digests;
}

}  // namespace tessera::server
