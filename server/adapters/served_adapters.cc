#include "server/adapters/served_adapters.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/planted.h"
#include "base/private_files.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "server/adapters/adapter_file.h"
#include "server/api/field_checks.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr char kExtension[] = ".safetensors";
constexpr char kIncoming[] = ".incoming-";
constexpr size_t kMaxLoaded = 4096;

std::string Named(const std::string& name) { return absl::StrCat("adapter '", name, "'"); }

absl::Status NotFound(const std::string& name, const std::vector<std::string>& known, const std::string& where) {
  if (known.empty()) return absl::NotFoundError(absl::StrCat(Named(name), " is unknown: ", where, " has no adapters"));
  return absl::NotFoundError(CheckName("adapter", name, known).message());
}

// Restarts the age of the file.
void Touch(const std::string& path) { utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

absl::Duration AgeOf(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) return absl::ZeroDuration();
  return absl::Now() - absl::TimeFromTimespec(about.st_mtim);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedAdapters>> ServedAdapters::Open(ServedAdaptersOptions options) {
  std::error_code error;
  if (!options.folder.empty() && !fs::is_directory(options.folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("the adapter folder ", QuotedValue(options.folder), " does not exist or is not a folder"));
  }
  if (!options.folder.empty()) RETURN_IF_ERROR(base::MakePrivateFolder(options.kept));
  // Workers may have another working directory.
  const fs::path kept = fs::absolute(options.kept, error);
  if (!error) options.kept = kept.lexically_normal();
  return std::unique_ptr<ServedAdapters>(new ServedAdapters(std::move(options)));
}

std::string ServedAdapters::KeptPath(const std::string& digest) const {
  return absl::StrCat(options_.kept, "/", digest, kExtension);
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
  AdapterFile file;
  bool kept = false;
  if (!is_new) {
    ASSIGN_OR_RETURN(file, CheckAdapterFile(found.path, name));
    kept = CheckKept(file.digest, KeptPath(file.digest)).ok();
  }
  std::error_code error;
  std::string incoming;
  if (!kept) {
    incoming = absl::StrCat(options_.kept, "/", base::RandomId(kIncoming));
    ASSIGN_OR_RETURN(file, CopyAdapterFile(found.path, name, incoming));
    // An existing intact copy is not replaced, because workers may be about to read it.
    kept = is_new && CheckKept(file.digest, KeptPath(file.digest)).ok();
    if (kept) fs::remove_all(std::exchange(incoming, ""), error);
  }
  // The check applies to the copy, even if the operator's file changes meanwhile.
  absl::StatusOr<models::AdapterOrigin> origin = models::AdapterOrigin();
  if (options_.check) origin = options_.check(found.model, kept ? KeptPath(file.digest) : incoming, name);
  if (origin.ok() && !kept) {
    fs::remove_all(KeptPath(file.digest), error);  // a damaged copy
    if (rename(incoming.c_str(), KeptPath(file.digest).c_str()) != 0) {
      origin = absl::UnavailableError(absl::StrCat(name, " cannot be stored in the server's data folder"));
    }
  }
  if (!origin.ok()) {
    if (!kept) fs::remove_all(incoming, error);
    return origin.status();
  }
  {
    const std::lock_guard lock(mutex_);
    verified_.insert(file.digest);
  }
  Touch(KeptPath(file.digest));
  if (const std::string warning = models::EmbeddingsWarning(found.name, origin->embeddings); !warning.empty()) {
    options_.log({base::LogLevel::kWarning, warning});
  }
  return ServedAdapter{
      .name = found.name, .digest = file.digest, .bytes = file.bytes, .step = origin->step, .added = absl::Now()};
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

absl::Status ServedAdapters::CheckKept(const std::string& digest, const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (verified_.contains(digest)) return access(path.c_str(), R_OK) == 0 ? absl::OkStatus() : absl::NotFoundError("");
  }
  ASSIGN_OR_RETURN(const AdapterFile file, CheckAdapterFile(path, digest));
  if (file.digest != digest && !base::Planted("kept_bytes_are_not_checked")) return absl::DataLossError("");
  const std::lock_guard lock(mutex_);
  verified_.insert(digest);
  return absl::OkStatus();
}

absl::Status ServedAdapters::Locate(std::vector<control::AdapterUse>& adapters) {
  for (control::AdapterUse& adapter : adapters) {
    adapter.file = KeptPath(adapter.digest);
    if (base::Planted("adapter_is_not_pinned")) {
      adapter.file = absl::StrCat(options_.folder, "/", adapter.name, kExtension);
    }
    if (CheckKept(adapter.digest, adapter.file).ok()) {
      Touch(adapter.file);
      continue;
    }
    return absl::DataLossError(absl::StrCat("the bytes of ", Named(adapter.name),
                                            " that the job was accepted with (SHA-256 ", adapter.digest,
                                            ") are no longer on this server"));
  }
  return absl::OkStatus();
}

void ServedAdapters::RemoveUnused(const std::set<std::string>& needed) {
  if (options_.folder.empty()) return;
  const std::lock_guard loading(loading_);
  std::set<std::string> named = needed;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, loaded] : loaded_) named.insert(loaded.adapter.digest);
  }
  std::error_code error;
  for (fs::directory_iterator entry(options_.kept, error), end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path(), file = entry->path().filename();
    const bool ours = absl::StartsWith(file, kIncoming) || absl::EndsWith(file, kExtension);
    const std::string digest(absl::StripSuffix(file, kExtension));
    if (!ours || named.contains(digest) || AgeOf(path) <= options_.grace_period) continue;
    std::error_code removed;
    fs::remove_all(path, removed);
    if (removed) continue;
    const std::lock_guard lock(mutex_);
    verified_.erase(digest);
  }
}

}  // namespace tessera::server
