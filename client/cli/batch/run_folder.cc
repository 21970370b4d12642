#include "client/cli/batch/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/file.h"
#include "base/plain_json.h"
#include "base/private_files.h"
#include "base/random_bytes.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/store_disk.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int kVersion = 1;
constexpr int64_t kImagesInAFolder = 1000;
constexpr size_t kMaxRunBytes = 4096;
constexpr absl::Duration kLockTimeout = absl::Seconds(2);
constexpr char kRunFolder[] = "/run";
constexpr char kManifest[] = "/manifest.jsonl";

// `times`: with what differs from run to run.
json::object JsonOf(const RunEntry& entry, bool times) {
  json::object line = {{"index", entry.index}, {"item", entry.item_digest}};
  if (!entry.custom_id.empty()) line["custom_id"] = entry.custom_id;
  line["status"] = entry.error.ok() ? "done" : "failed";
  if (!entry.error.ok()) {
    line["error"] = {{"code", static_cast<int>(entry.error.code())}, {"message", std::string(entry.error.message())}};
  }
  json::array images;
  for (const RunImage& image : entry.images) {
    images.push_back({{"file", image.file},
                      {"seed", image.seed},
                      {"width", image.width},
                      {"height", image.height},
                      {"bytes", image.bytes},
                      {"sha256", image.digest}});
  }
  line["images"] = std::move(images);
  if (times) line["seconds"] = entry.seconds;
  return line;
}

std::optional<RunEntry> EntryOf(const std::string& text) {
  json::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return std::nullopt;
  try {
    const json::object& line = value.get_object();
    RunEntry entry = {.index = line.at("index").to_number<int64_t>(),
                      .item_digest = std::string(line.at("item").as_string()),
                      .seconds = line.at("seconds").to_number<double>()};
    if (const json::value* id = line.if_contains("custom_id")) entry.custom_id = std::string(id->as_string());
    if (line.at("status").as_string() == "failed") {
      const json::object& failure = line.at("error").as_object();
      entry.error = absl::Status(static_cast<absl::StatusCode>(failure.at("code").to_number<int>()),
                                 std::string(failure.at("message").as_string()));
      if (entry.error.ok()) return std::nullopt;
    }
    for (const json::value& of : line.at("images").as_array()) {
      const json::object& image = of.as_object();
      entry.images.push_back({.file = std::string(image.at("file").as_string()),
                              .seed = image.at("seed").to_number<uint64_t>(),
                              .width = image.at("width").to_number<int32_t>(),
                              .height = image.at("height").to_number<int32_t>(),
                              .bytes = image.at("bytes").to_number<uint64_t>(),
                              .digest = std::string(image.at("sha256").as_string())});
    }
    return entry;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

uint64_t SeedOfItem(uint64_t run_seed, int64_t index) {
  const std::string digest = base::Sha256Of(absl::StrCat("tessera batch ", run_seed, " ", index));
  uint64_t seed = 0;
  std::memcpy(&seed, digest.data(), sizeof(seed));
  return seed >> 16;  // as a random one: readers of JSON keep it, and there is room to count up
}

std::string RunFolder::ImageName(int64_t item, int32_t image, int32_t images, const std::string& ending) {
  return absl::StrFormat("images/%03d/%06d%s.%s", item / kImagesInAFolder, item,
                         images > 1 ? absl::StrCat("-", image) : "", ending);
}

std::string RunFolder::service_folder() const {
  return absl::StrCat(path_, kRunFolder, "/service-", shard_.index, "-of-", shard_.count);
}

std::string RunFolder::JournalPath() const {
  return absl::StrCat(path_, kRunFolder, "/journal-", shard_.index, "-of-", shard_.count, ".jsonl");
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Open(const std::string& path, Shard shard,
                                                           std::optional<uint64_t> seed) {
  std::unique_ptr<RunFolder> folder(new RunFolder(path, shard));
  std::error_code error;
  // In this order: other shards may be making the folder of the run, which is the first thing in it, at this moment.
  const bool holds_files = fs::exists(path, error) && !fs::is_empty(path, error);
  if (holds_files && !fs::exists(path + kRunFolder, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder \"", path, "\" holds other files; give a new one, or that of a run to go on with it"));
  }
  RETURN_IF_ERROR(base::MakeFolder(path));
  RETURN_IF_ERROR(base::MakePrivateFolder(path + kRunFolder));
  absl::StatusOr<server::ProcessLock> lock = server::ProcessLock::Take(folder->JournalPath() + ".lock", kLockTimeout);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("another process works on shard ", shard.index, "/", shard.count,
                                                      " of the run in \"", path, "\""));
  }
  folder->lock_ = *std::move(lock);
  RETURN_IF_ERROR(folder->OpenRun(seed));
  ASSIGN_OR_RETURN(folder->entries_, folder->ReadJournals());
  RETURN_IF_ERROR(folder->OpenJournal());
  return folder;
}

absl::Status RunFolder::OpenRun(std::optional<uint64_t> seed) {
  const std::string file = absl::StrCat(path_, kRunFolder, "/run.json");
  const json::object made = {{"version", kVersion}, {"seed", seed.value_or(base::RandomNumber<uint64_t>() >> 16)}};
  const absl::Status written = base::WriteFileAtomically(file, json::serialize(made) + "\n", {.overwrite = false});
  if (!written.ok() && !absl::IsAlreadyExists(written)) return server::AsDiskFailure(written);
  json::error_code error;
  const json::value run = json::parse(base::ReadSmallFile(file, kMaxRunBytes).value_or(""), error);
  const json::object* object = error ? nullptr : run.if_object();
  const json::value* kept = object == nullptr ? nullptr : object->if_contains("seed");
  const json::value* version = object == nullptr ? nullptr : object->if_contains("version");
  if (kept == nullptr || !kept->is_number() || version == nullptr || *version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the run in \"", path_, "\" cannot be read: ", file,
                                                      " is not what this version of the program writes"));
  }
  seed_ = kept->to_number<uint64_t>();
  if (!seed.has_value() || *seed == seed_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the run in \"", path_, "\" has the seed ", seed_, ", not ", *seed,
                                                    "; leave --seed out to go on with it, or give another folder"));
}

absl::StatusOr<std::map<int64_t, RunEntry>> RunFolder::ReadJournals() const {
  std::map<int64_t, RunEntry> entries;
  std::error_code error;
  std::vector<std::string> journals;
  for (fs::directory_iterator it(path_ + kRunFolder, error), end; !error && it != end; it.increment(error)) {
    if (absl::EndsWith(it->path().filename().string(), ".jsonl")) journals.push_back(it->path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat("\"", path_, "\" cannot be read: ", error.message()));
  for (const std::string& journal : journals) {
    std::ifstream file(journal, std::ios::binary);
    // What was cut off by the end of a process, or is being written now, has not happened.
    for (std::string line; std::getline(file, line) && !file.eof();) {
      std::optional<RunEntry> entry = EntryOf(line);
      if (!entry.has_value()) continue;
      RunEntry& known = entries[entry->index];
      // One that failed and was tried again has two.
      if (known.item_digest.empty() || !known.error.ok()) known = *std::move(entry);
    }
  }
  return entries;
}

absl::Status RunFolder::OpenJournal() {
  const std::string path = JournalPath();
  journal_ = base::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!journal_.valid()) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  // A line that was cut off would spoil the next one.
  off_t size = ::lseek(journal_.get(), 0, SEEK_END);
  for (char last = 0; size > 0; --size) {
    if (::pread(journal_.get(), &last, 1, size - 1) != 1 || last == '\n') break;
  }
  if (::ftruncate(journal_.get(), size) != 0 || ::lseek(journal_.get(), size, SEEK_SET) != size) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return base::SyncFolder(path_ + kRunFolder);
}

absl::StatusOr<const RunEntry*> RunFolder::Find(int64_t index, const std::string& item_digest) const {
  const auto entry = entries_.find(index);
  if (entry == entries_.end()) return nullptr;
  if (entry->second.item_digest == item_digest) return &entry->second;
  return absl::FailedPreconditionError(absl::StrCat("item ", index, " is not the one that the run in \"", path_,
                                                    "\" has made: its input was another; give another folder"));
}

absl::Status RunFolder::WriteImage(const std::string& name, const std::string& bytes) {
  const fs::path path = fs::path(path_) / name;
  RETURN_IF_ERROR(base::MakeFolder(path.parent_path()));
  return server::AsDiskFailure(base::WriteFileAtomically(path.string(), bytes));
}

absl::Status RunFolder::Append(const RunEntry& entry) {
  const std::string line = base::PlainJson(JsonOf(entry, /*times=*/true)) + "\n";
  const std::lock_guard lock(mutex_);
  const off_t before = ::lseek(journal_.get(), 0, SEEK_CUR);
  size_t written = 0;
  int failure = 0;
  while (failure == 0 && written < line.size()) {
    const ssize_t some = ::write(journal_.get(), line.data() + written, line.size() - written);
    if (some >= 0) {
      written += static_cast<size_t>(some);
    } else if (errno != EINTR) {
      failure = errno;
    }
  }
  if (failure == 0 && ::fdatasync(journal_.get()) != 0) failure = errno;
  if (failure == 0) return absl::OkStatus();
  // Nothing of it may stay: the line is tried again.
  if (::ftruncate(journal_.get(), before) != 0 || ::lseek(journal_.get(), before, SEEK_SET) != before) {
    return absl::UnavailableError("the journal of the run cannot be written");
  }
  const std::string what = absl::StrCat("the journal of the run cannot be written: ", std::strerror(failure));
  return failure == ENOSPC || failure == EDQUOT ? absl::ResourceExhaustedError(what) : absl::UnavailableError(what);
}

absl::StatusOr<bool> RunFolder::WriteManifest(int64_t items) const {
  ASSIGN_OR_RETURN(const auto entries, ReadJournals());
  if (static_cast<int64_t>(entries.size()) < items) return false;
  // Nobody writes any more: what a process that was killed has left may go.
  std::error_code error;
  for (fs::recursive_directory_iterator it(path_ + "/images", error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (absl::StrContains(it->path().filename().string(), server::kTemporaryMark)) fs::remove(it->path(), ignored);
  }
  std::string text;
  for (const auto& [index, entry] : entries) {
    absl::StrAppend(&text, base::PlainJson(JsonOf(entry, /*times=*/false)), "\n");
  }
  RETURN_IF_ERROR(server::AsDiskFailure(base::WriteFileAtomically(path_ + kManifest, text)));
  return true;
}

}  // namespace tessera::client
