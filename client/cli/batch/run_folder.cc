#include "client/cli/batch/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/files/sha256.h"
#include "base/json/plain_json.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/store_disk.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int kVersion = 2;
constexpr size_t kMaxRunBytes = 4096;
constexpr size_t kPartBytes = size_t{1} << 20;
constexpr absl::Duration kLockTimeout = absl::Seconds(2);
constexpr absl::Duration kManifestTimeout = absl::Minutes(5);
constexpr char kRunFolder[] = "/run";
constexpr char kManifest[] = "/manifest.jsonl";

constexpr size_t kMaxModelBytes = 512;

absl::Status ReadFailure(const std::string& path, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat("\"", path, "\" cannot be read: ", reason));
}

// Returns what is wrong with the file; empty if it is intact.
absl::StatusOr<std::string> DamageOfFile(const std::string& path, const RunImage& image) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return "is missing";
  if (error) return ReadFailure(path, error.message());
  if (status.type() != fs::file_type::regular) return "is not a file";
  const absl::StatusOr<base::ReadOnlyFile> file = base::ReadOnlyFile::Open(path, image.file);
  if (!file.ok()) return ReadFailure(path, std::string(file.status().message()));
  if (file->size() != image.bytes) return absl::StrCat("has ", file->size(), " bytes, not ", image.bytes);
  base::Sha256 digest;
  std::vector<std::byte> part(kPartBytes);
  for (uint64_t at = 0; at < image.bytes; at += part.size()) {
    part.resize(std::min<uint64_t>(kPartBytes, image.bytes - at));
    if (const absl::Status read = file->Read(at, part); !read.ok())
      return ReadFailure(path, std::string(read.message()));
    digest.Update({reinterpret_cast<const char*>(part.data()), part.size()});
  }
  return digest.Finish() == image.digest ? "" : "has changed";
}

// Removes partly written files that processes have left.
template <typename Iterator>
void RemoveLeftovers(Iterator entry) {
  std::error_code error;
  for (; !error && entry != Iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (absl::StrContains(entry->path().filename().string(), server::kTemporaryMark))
      fs::remove(entry->path(), ignored);
  }
}

}  // namespace

uint64_t SeedOfItem(uint64_t run_seed, int64_t index) {
  const std::string digest = base::Sha256Of(absl::StrCat("tessera batch ", run_seed, " ", index));
  uint64_t seed = 0;
  std::memcpy(&seed, digest.data(), sizeof(seed));
  return seed >>
         16;  // below 2^48 like a random seed: JSON readers represent it exactly, and seeds can count up from it
}

std::string RunFolder::service_folder() const {
  return absl::StrCat(path_, kRunFolder, "/service-", shard_.index, "-of-", shard_.count);
}

std::string RunFolder::JournalPath() const {
  return absl::StrCat(path_, kRunFolder, "/journal-", shard_.index, "-of-", shard_.count, ".jsonl");
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Open(const std::string& path, Shard shard,
                                                           const RunIdentity& identity) {
  std::unique_ptr<RunFolder> folder(new RunFolder(path, shard));
  std::error_code error;
  // The order matters: other shards may be creating the run's folder, the first entry in it, at this moment.
  const bool holds_files = fs::exists(path, error) && !fs::is_empty(path, error);
  if (holds_files && !fs::exists(path + kRunFolder, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the folder \"", path, "\" holds other files; give a new folder, or that of a run to continue it"));
  }
  RETURN_IF_ERROR(base::MakeFolder(path));
  RETURN_IF_ERROR(base::MakePrivateFolder(path + kRunFolder));
  RETURN_IF_ERROR(base::SyncFolder(path));
  absl::StatusOr<base::ProcessLock> lock = base::ProcessLock::Take(folder->JournalPath() + ".lock", kLockTimeout);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("another process works on shard ", shard.index, "/", shard.count,
                                                      " of the run in \"", path, "\""));
  }
  folder->lock_ = *std::move(lock);
  RETURN_IF_ERROR(folder->OpenRun(identity));
  ASSIGN_OR_RETURN(folder->entries_, folder->ReadJournals());
  RETURN_IF_ERROR(folder->OpenJournal());
  return folder;
}

absl::Status RunFolder::OpenRun(const RunIdentity& identity) {
  const std::string file = absl::StrCat(path_, kRunFolder, "/run.json");
  const std::string model = identity.model.substr(0, kMaxModelBytes);
  const json::object made = {{"version", kVersion},
                             {"id", base::RandomId("run_")},
                             {"seed", identity.seed.value_or(base::RandomNumber<uint64_t>() >> 16)},
                             {"model", model},
                             {"files", identity.files},
                             {"dtype", identity.dtype}};
  const absl::Status written = base::WriteFileAtomically(file, base::PlainJson(made) + "\n", {.overwrite = false});
  if (!written.ok() && !absl::IsAlreadyExists(written)) return server::AsDiskFailure(written);
  RunIdentity kept;
  try {
    const json::value run = json::parse(base::ReadSmallFile(file, kMaxRunBytes).value_or(""));
    if (run.at("version") != kVersion) throw std::invalid_argument("version");
    seed_ = run.at("seed").to_number<uint64_t>();
    id_ = std::string(run.at("id").as_string());
    kept.model = std::string(run.at("model").as_string());
    kept.files = std::string(run.at("files").as_string());
    kept.dtype = std::string(run.at("dtype").as_string());
  } catch (const std::exception&) {
    return absl::FailedPreconditionError(absl::StrCat("the run in \"", path_, "\" cannot be read: ", file,
                                                      " is not in the format of this version of the program"));
  }
  if (identity.seed.has_value() && *identity.seed != seed_) {
    return absl::FailedPreconditionError(absl::StrCat("the run in \"", path_, "\" has the seed ", seed_, ", not ",
                                                      *identity.seed,
                                                      "; leave --seed out to continue it, or give another folder"));
  }
  return model.empty() ? absl::OkStatus()
                       : CheckModel(kept, {.model = model, .files = identity.files, .dtype = identity.dtype});
}

absl::Status RunFolder::CheckModel(const RunIdentity& kept, const RunIdentity& identity) const {
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run in \"", path_, "\" is ", what, "; continue with that one, or give another folder"));
  };
  if (identity.model != kept.model) return refuse(absl::StrCat("of the model ", kept.model, ", not ", identity.model));
  if (identity.files.empty() != kept.files.empty()) {
    return refuse(kept.files.empty() ? "made by a server's model, not by one of this machine"
                                     : "made by a model of this machine, not by a server's");
  }
  if (identity.dtype != kept.dtype) return refuse(absl::StrCat("made in ", kept.dtype, ", not ", identity.dtype));
  if (identity.files == kept.files) return absl::OkStatus();
  return refuse(absl::StrCat("of another model ", kept.model, ", whose files have the digest ",
                             kept.files.substr(0, 16), ", not ", identity.files.substr(0, 16)));
}

absl::StatusOr<std::map<int64_t, RunEntry>> RunFolder::ReadJournals() const {
  std::map<int64_t, RunEntry> entries;
  std::error_code error;
  std::vector<std::string> journals;
  for (fs::directory_iterator it(path_ + kRunFolder, error), end; !error && it != end; it.increment(error)) {
    if (absl::EndsWith(it->path().filename().string(), ".jsonl")) journals.push_back(it->path().string());
  }
  if (error) return ReadFailure(path_, error.message());
  for (const std::string& journal : journals) {
    std::ifstream file(journal, std::ios::binary);
    // Ignore a last line without its end: it was cut off when a process died, or is being written now.
    for (std::string line; std::getline(file, line) && !file.eof();) {
      if (std::optional<RunEntry> entry = ReadJournalLine(line)) AddEntry(*std::move(entry), entries);
    }
  }
  return entries;
}

absl::Status RunFolder::OpenJournal() {
  const std::string path = JournalPath();
  journal_ = base::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!journal_.valid()) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  // A truncated line would corrupt the next one.
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
  if (entry->second.item_digest == item_digest) {
    return entry->second.state() == RunState::kLost ? nullptr : &entry->second;
  }
  return absl::FailedPreconditionError(absl::StrCat("item ", index, " differs from the one in the run in \"", path_,
                                                    "\", whose input was another; give another folder"));
}

int64_t RunFolder::AttemptOf(int64_t index) const {
  const auto entry = entries_.find(index);
  return entry == entries_.end() ? 0 : entry->second.attempt + 1;
}

absl::Status RunFolder::MakeImageFolder(const std::string& folder) {
  const std::lock_guard lock(folders_mutex_);
  if (folders_.contains(folder)) return absl::OkStatus();
  RETURN_IF_ERROR(base::MakeFolder(folder));
  // An existing folder may have been created by a process that died before the name was durable.
  RETURN_IF_ERROR(base::SyncFolder(fs::path(folder).parent_path()));
  RETURN_IF_ERROR(base::SyncFolder(path_));
  folders_.insert(folder);
  return absl::OkStatus();
}

absl::Status RunFolder::WriteImage(const std::string& name, const std::string& bytes) {
  const fs::path path = fs::path(path_) / name;
  RETURN_IF_ERROR(MakeImageFolder(path.parent_path()));
  return server::AsDiskFailure(base::WriteFileAtomically(path.string(), bytes));
}

absl::Status RunFolder::Append(RunEntry entry) {
  entry.attempt = AttemptOf(entry.index);
  return AppendLines(JournalLine(entry));
}

absl::Status RunFolder::AppendLines(const std::string& lines) {
  const std::lock_guard lock(mutex_);
  const off_t before = ::lseek(journal_.get(), 0, SEEK_CUR);
  size_t written = 0;
  int failure = 0;
  while (failure == 0 && written < lines.size()) {
    const ssize_t some = ::write(journal_.get(), lines.data() + written, lines.size() - written);
    if (some >= 0) {
      written += static_cast<size_t>(some);
    } else if (errno != EINTR) {
      failure = errno;
    }
  }
  if (failure == 0 && ::fdatasync(journal_.get()) != 0) failure = errno;
  if (failure == 0) return absl::OkStatus();
  // Remove the partly written lines, because they will be written again.
  if (::ftruncate(journal_.get(), before) != 0 || ::lseek(journal_.get(), before, SEEK_SET) != before) {
    return absl::UnavailableError("the journal of the run cannot be written");
  }
  const std::string what = absl::StrCat("the journal of the run cannot be written: ", std::strerror(failure));
  return failure == ENOSPC || failure == EDQUOT ? absl::ResourceExhaustedError(what) : absl::UnavailableError(what);
}

absl::StatusOr<std::string> RunFolder::ReadImage(const RunImage& image) const {
  absl::StatusOr<std::string> bytes =
      base::ReadWholeFile(absl::StrCat(path_, "/", image.file), image.file, image.bytes);
  if (bytes.ok() && bytes->size() == image.bytes && absl::BytesToHexString(base::Sha256Of(*bytes)) == image.digest) {
    return bytes;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("\"", path_, "/", image.file,
                   "\" was changed after the run wrote it; run the command with --verify to find all such "
                   "images, and without it to make them again"));
}

absl::StatusOr<std::vector<RunDamage>> RunFolder::DamageOf(const RunEntry& entry) const {
  std::vector<RunDamage> damage;
  for (const RunImage& image : entry.images) {
    ASSIGN_OR_RETURN(std::string what, DamageOfFile(absl::StrCat(path_, "/", image.file), image));
    if (!what.empty()) damage.push_back({.file = image.file, .what = std::move(what)});
  }
  return damage;
}

absl::Status RunFolder::Forget(absl::Span<const RunEntry> entries) {
  if (entries.empty()) return absl::OkStatus();
  std::string lines;
  for (const RunEntry& entry : entries) {
    absl::StrAppend(&lines, JournalLine({.index = entry.index,
                                         .item_digest = entry.item_digest,
                                         .custom_id = entry.custom_id,
                                         .attempt = entry.attempt,
                                         .lost = true}));
  }
  RETURN_IF_ERROR(AppendLines(lines));
  std::error_code error;
  if (fs::remove(path_ + kManifest, error) && !error) RETURN_IF_ERROR(base::SyncFolder(path_));
  if (error) return absl::UnavailableError(absl::StrCat("the manifest cannot be removed: ", error.message()));
  return absl::OkStatus();
}

absl::StatusOr<bool> RunFolder::WriteManifest(int64_t items) const {
  // Removing partly written files must not remove one that another process is writing at this moment.
  const absl::StatusOr<base::ProcessLock> lock =
      base::ProcessLock::Take(absl::StrCat(path_, kRunFolder, "/manifest.lock"), kManifestTimeout);
  if (!lock.ok()) return absl::UnavailableError("another process has been writing the manifest for minutes");
  ASSIGN_OR_RETURN(const auto entries, ReadJournals());
  if (!entries.empty() && entries.rbegin()->first >= items) {
    return absl::FailedPreconditionError(absl::StrCat("the run in \"", path_, "\" has made item ",
                                                      entries.rbegin()->first, ", and the input has ", items,
                                                      " items: it must be the whole input of that run"));
  }
  const auto ended =
      std::ranges::count_if(entries, [](const auto& entry) { return entry.second.state() != RunState::kLost; });
  if (ended < items) return false;
  std::error_code ignored;
  // All processes have finished writing, so files left by killed processes can be removed.
  RemoveLeftovers(fs::recursive_directory_iterator(path_ + "/images", ignored));
  RemoveLeftovers(fs::directory_iterator(path_, ignored));
  std::string text;
  for (const auto& [index, entry] : entries) absl::StrAppend(&text, ManifestLine(entry));
  RETURN_IF_ERROR(server::AsDiskFailure(base::WriteFileAtomically(path_ + kManifest, text)));
  return true;
}

}  // namespace tessera::client
