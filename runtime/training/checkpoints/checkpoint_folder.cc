#include "runtime/training/checkpoints/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "models/weights/safetensors.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "checkpoint-";
constexpr char kHiddenPrefix[] = ".checkpoint-";
constexpr char kBranchPrefix[] = "branch-";
constexpr char kHeadName[] = ".branch";
constexpr char kListName[] = "moved";
// Less than every step.
constexpr int64_t kNoStep = -1;
constexpr char kIndexName[] = "checkpoint.json";
constexpr char kDigestsName[] = "SHA256SUMS";
// Names of the results of a step, before and after the step's number.
constexpr std::pair<absl::string_view, absl::string_view> kResultNames[] = {{kPrefix, ""},
                                                                            {"adapter-", ""},
                                                                            {"adapter-", ".safetensors"},
                                                                            {"adapter-", ".kohya.safetensors"},
                                                                            {"adapter-", ".comfyui.safetensors"},
                                                                            {"model-", ""}};
constexpr size_t kMaxIndexBytes = size_t{1} << 30;
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kDigestDigits = 64;

std::string In(const std::string& folder, const std::string& name) { return absl::StrCat(folder, "/", name); }

// Returns the number between the prefix and the suffix, formatted like StrCat; nothing for other names.
std::optional<int64_t> NumberIn(const std::string& name, absl::string_view prefix, absl::string_view suffix = "") {
  int64_t number = 0;
  if (!absl::StartsWith(name, prefix)) return std::nullopt;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return number >= 0 && name == absl::StrCat(prefix, number, suffix) ? std::optional(number) : std::nullopt;
}

// Returns the step of a checkpoint's name; nothing for other names.
std::optional<int64_t> StepOf(const std::string& name) { return NumberIn(name, kPrefix); }

// Returns the step of a checkpoint's or an export's name; nothing for other names.
std::optional<int64_t> StepOfResult(const std::string& name) {
  for (const auto& [prefix, suffix] : kResultNames) {
    if (const std::optional<int64_t> step = NumberIn(name, prefix, suffix)) return step;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) names.push_back(entry->path().filename());
  if (error == std::errc::no_such_file_or_directory) {
    return absl::NotFoundError(absl::StrCat("the folder \"", folder, "\" does not exist"));
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot list \"", folder, "\": ", error.message()));
  return names;
}

// Returns the steps of the checkpoints in the folder, complete or not, in descending order.
absl::StatusOr<std::vector<int64_t>> StepsIn(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOf(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot remove \"", path, "\": ", error.message()));
}

absl::StatusOr<std::string> DigestOf(const std::string& path) {
  ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, path));
  base::Sha256 digest;
  std::string buffer;
  for (uint64_t at = 0; at < file.size(); at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(kBufferBytes, file.size() - at));
    RETURN_IF_ERROR(file.Read(at, std::as_writable_bytes(std::span(buffer))));
    digest.Update(buffer);
  }
  return digest.Finish();
}

absl::StatusOr<FileDigests> ReadDigests(const std::string& checkpoint) {
  const std::string path = In(checkpoint, kDigestsName);
  ASSIGN_OR_RETURN(std::string text, base::ReadWholeFile(path, path, kMaxIndexBytes));
  const auto malformed = [&] { return absl::DataLossError(absl::StrCat(path, ": is malformed")); };
  if (text.empty() || text.back() != '\n') return malformed();
  text.pop_back();
  FileDigests digests;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits("  ", 1));
    if (parts.first.size() != kDigestDigits || !base::IsPlainFileName(parts.second)) return malformed();
    digests.emplace(parts.second, parts.first);
  }
  return digests;
}

absl::Status Verify(const std::string& checkpoint, const std::string& name, const FileDigests& digests) {
  const std::string path = In(checkpoint, name);
  const auto expected = digests.find(name);
  if (expected == digests.end()) {
    return absl::DataLossError(absl::StrCat(path, ": ", kDigestsName, " does not list it"));
  }
  ASSIGN_OR_RETURN(const std::string digest, DigestOf(path));
  if (digest == expected->second) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": was changed after it was written; its digest is ", digest, ", ",
                                          kDigestsName, " has ", expected->second));
}

// Whether all files exist and have the sizes in their headers.
bool IsComplete(const std::string& checkpoint) {
  const absl::StatusOr<CheckpointIndex> index = ReadIndex(checkpoint);
  if (!index.ok()) return false;
  for (int64_t rank = 0; rank < index->ranks; ++rank) {
    const std::string name = RankFileName(rank, index->ranks);
    if (!models::SafetensorsFile::Open(In(checkpoint, name), name).ok()) return false;
  }
  return true;
}

absl::Status Move(const std::string& from, const std::string& to, const std::string& folder, int64_t step) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  // A rename does not replace a non-empty folder, so the two are exchanged, and the old one is removed later.
  if ((errno == ENOTEMPTY || errno == EEXIST) &&
      ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  // For file systems without RENAME_EXCHANGE: for a moment the checkpoint has neither name, and a kill at that moment
  // leaves it so.
  const std::string aside = In(folder, absl::StrCat(kHiddenPrefix, step, ".replaced"));
  RETURN_IF_ERROR(Remove(aside));
  if (::rename(to.c_str(), aside.c_str()) == 0 && ::rename(from.c_str(), to.c_str()) == 0) return Remove(aside);
  return absl::UnavailableError(absl::StrCat("cannot move \"", from, "\" to \"", to, "\": ", std::strerror(errno)));
}

// A branch that is empty was created for a move that never began, and does not count.
bool IsUsedBranch(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  return NumberIn(name, kBranchPrefix) && !fs::is_empty(In(folder, name), ignored);
}

std::string ListPath(const std::string& folder) { return In(HeadFolder(folder), kListName); }

// Returns the results of steps after `step`, and the branch that they are to move to.
absl::StatusOr<SetAside> PlanSetAside(const std::string& folder, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  std::vector<std::pair<int64_t, std::string>> later;
  int64_t branch = 1;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> of = StepOfResult(name); of && *of > step) later.emplace_back(*of, name);
    if (IsUsedBranch(folder, name)) branch = std::max(branch, *NumberIn(name, kBranchPrefix) + 1);
  }
  if (later.empty()) return SetAside();
  std::sort(later.rbegin(), later.rend());
  SetAside aside{.folder = absl::StrCat(kBranchPrefix, branch), .names = {}};
  for (auto& [of, name] : later) aside.names.push_back(std::move(name));
  return aside;
}

// After this call the move will be finished, even after an interruption.
absl::Status WriteList(const std::string& folder, const SetAside& aside) {
  RETURN_IF_ERROR(base::MakeFolder(In(folder, aside.folder)));
  RETURN_IF_ERROR(base::MakeFolder(HeadFolder(folder)));
  return base::WriteFileAtomically(ListPath(folder),
                                   absl::StrCat(aside.folder, "\n", absl::StrJoin(aside.names, "\n"), "\n"));
}

// Returns NotFound if no move is unfinished.
absl::StatusOr<SetAside> ReadList(const std::string& folder) {
  const std::string path = ListPath(folder);
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, path, kMaxIndexBytes));
  SetAside aside;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::string name(line);
    if (aside.folder.empty() ? !NumberIn(name, kBranchPrefix) : !StepOfResult(name)) {
      return absl::DataLossError(absl::StrCat(path, ": is malformed"));
    }
    if (aside.folder.empty()) {
      aside.folder = name;
    } else {
      aside.names.push_back(name);
    }
  }
  return aside;
}

// Moves the head, if there is one, into the folder.
absl::Status MoveHead(const std::string& folder) {
  const absl::StatusOr<std::vector<int64_t>> heads = StepsIn(HeadFolder(folder));
  if (absl::IsNotFound(heads.status())) return absl::OkStatus();
  RETURN_IF_ERROR(heads.status());
  for (const int64_t step : *heads) {
    RETURN_IF_ERROR(Move(In(HeadFolder(folder), CheckpointName(step)), In(folder, CheckpointName(step)), folder, step));
  }
  RETURN_IF_ERROR(base::SyncFolder(folder));
  return Remove(HeadFolder(folder));
}

// May be repeated after an interruption at any point.
absl::Status MoveAside(const std::string& folder, const SetAside& aside) {
  std::error_code ignored;
  const std::string target = In(folder, aside.folder);
  for (const std::string& name : aside.names) {
    const std::string from = In(folder, name), to = In(target, name);
    // If a name has been moved already, the folder's entry with that name may be the head.
    if (fs::exists(fs::symlink_status(to, ignored)) || !fs::exists(fs::symlink_status(from, ignored))) continue;
    if (::rename(from.c_str(), to.c_str()) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot move \"", from, "\", which is of another branch, to \"",
                                                 target, "\": ", std::strerror(errno)));
    }
  }
  if (!aside.names.empty()) RETURN_IF_ERROR(base::SyncFolder(target));
  return MoveHead(folder);
}

absl::StatusOr<SetAside> SetAsideSteps(const std::string& folder, int64_t step) {
  ASSIGN_OR_RETURN(const SetAside aside, PlanSetAside(folder, step));
  if (const absl::Status written = aside.names.empty() ? absl::OkStatus() : WriteList(folder, aside); !written.ok()) {
    std::error_code ignored;
    fs::remove_all(HeadFolder(folder), ignored);
    fs::remove(In(folder, aside.folder), ignored);  // the folder is empty
    return written;
  }
  RETURN_IF_ERROR(MoveAside(folder, aside));
  return aside;
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrCat(kPrefix, step); }

std::string RankFileName(int64_t rank, int64_t ranks) {
  return absl::StrFormat("rank-%05d-of-%05d.safetensors", rank, ranks);
}

std::string PartialCheckpoint(const std::string& folder, int64_t step) {
  return In(folder, absl::StrCat(kHiddenPrefix, step, ".partial"));
}

absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& checkpoint, FileDigests* digests) {
  std::error_code ignored;
  if (!fs::is_directory(checkpoint, ignored)) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint \"", checkpoint, "\""));
  }
  ASSIGN_OR_RETURN(FileDigests found, ReadDigests(checkpoint));
  RETURN_IF_ERROR(Verify(checkpoint, kIndexName, found));
  const std::string path = In(checkpoint, kIndexName);
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(CheckpointIndex index, ParseIndex(text, path));
  RETURN_IF_ERROR(CheckCoverage(index));
  if (digests != nullptr) *digests = std::move(found);
  return index;
}

absl::Status VerifyRankFile(const std::string& checkpoint, int64_t rank, const CheckpointIndex& index,
                            const FileDigests& digests) {
  return Verify(checkpoint, RankFileName(rank, index.ranks), digests);
}

absl::Status VerifyCheckpoint(const std::string& checkpoint) {
  FileDigests digests;
  ASSIGN_OR_RETURN(const CheckpointIndex index, ReadIndex(checkpoint, &digests));
  for (int64_t rank = 0; rank < index.ranks; ++rank) {
    RETURN_IF_ERROR(VerifyRankFile(checkpoint, rank, index, digests));
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundCheckpoint> LatestWhole(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(folder));
  FoundCheckpoint found;
  for (const int64_t step : steps) {
    found.path = In(folder, CheckpointName(step));
    found.step = step;
    const absl::Status status = VerifyCheckpoint(found.path);
    if (status.ok()) return found;
    found.passed_over.push_back(absl::StrCat(CheckpointName(step), " is not complete: ", status.message()));
  }
  ASSIGN_OR_RETURN(std::vector<std::string> branches, NamesIn(folder));
  std::erase_if(branches, [&](const std::string& name) { return !IsUsedBranch(folder, name); });
  std::ranges::sort(branches);
  return absl::NotFoundError(absl::StrCat("no complete checkpoint found in \"", folder, "\"",
                                          found.passed_over.empty() ? "" : ": ", absl::StrJoin(found.passed_over, "; "),
                                          branches.empty() ? "" : "; other branches are in ",
                                          absl::StrJoin(branches, ", ")));
}

absl::Status KeepLast(const std::string& folder, int count) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(folder));
  int kept = 0;
  for (const int64_t step : steps) {
    const std::string path = In(folder, CheckpointName(step));
    if (kept < std::max(count, 1)) {
      if (IsComplete(path)) ++kept;
      continue;
    }
    // A partly removed checkpoint must not have a checkpoint's name.
    const std::string aside = In(folder, absl::StrCat(kHiddenPrefix, step, ".removed"));
    RETURN_IF_ERROR(Remove(aside));
    if (::rename(path.c_str(), aside.c_str()) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot remove \"", path, "\": ", std::strerror(errno)));
    }
    RETURN_IF_ERROR(Remove(aside));
  }
  return absl::OkStatus();
}

bool BelongsTo(const std::string& checkpoint, const std::string& folder) {
  std::error_code error;
  const fs::path parent = fs::canonical(checkpoint, error).parent_path();
  if (error) return false;
  if (fs::equivalent(parent, folder, error)) return true;
  return NumberIn(parent.filename(), kBranchPrefix) && fs::equivalent(parent.parent_path(), folder, error);
}

bool HasCheckpoints(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) {
           return absl::StartsWith(name, kPrefix) || IsUsedBranch(folder, name);
         });
}

std::string HeadFolder(const std::string& folder) { return In(folder, kHeadName); }

absl::StatusOr<SetAside> SetAsideAfter(const std::string& folder, int64_t step) {
  RETURN_IF_ERROR(Remove(HeadFolder(folder)));
  return SetAsideSteps(folder, step);
}

absl::StatusOr<SetAside> SetAsideForHead(const std::string& folder) { return SetAsideSteps(folder, kNoStep); }

absl::StatusOr<SetAside> FinishSetAside(const std::string& folder) {
  absl::StatusOr<SetAside> aside = ReadList(folder);
  if (absl::IsNotFound(aside.status())) {
    RETURN_IF_ERROR(Remove(HeadFolder(folder)));
    return SetAside();
  }
  RETURN_IF_ERROR(aside.status());
  RETURN_IF_ERROR(MoveAside(folder, *aside));
  return aside;
}

absl::Status RemoveLeftovers(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string& name : names) {
    if (name.starts_with(kHiddenPrefix)) RETURN_IF_ERROR(Remove(In(folder, name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BeginCheckpoint(const std::string& folder, int64_t step) {
  RETURN_IF_ERROR(base::MakeFolder(folder));
  RETURN_IF_ERROR(RemoveLeftovers(folder));
  const std::string partial = PartialCheckpoint(folder, step);
  RETURN_IF_ERROR(base::MakeFolder(partial));
  return partial;
}

absl::Status FinishCheckpoint(const std::string& folder, const CheckpointIndex& index, FileDigests digests) {
  const std::string partial = PartialCheckpoint(folder, index.step);
  const std::string json = absl::StrCat(IndexJson(index), "\n");
  RETURN_IF_ERROR(base::WriteFileAtomically(In(partial, kIndexName), json));
  base::Sha256 digest;
  digest.Update(json);
  digests[kIndexName] = digest.Finish();
  std::string lines;
  for (const auto& [name, hex] : digests) absl::StrAppend(&lines, hex, "  ", name, "\n");
  RETURN_IF_ERROR(base::WriteFileAtomically(In(partial, kDigestsName), lines));
  RETURN_IF_ERROR(Move(partial, In(folder, CheckpointName(index.step)), folder, index.step));
  RETURN_IF_ERROR(base::SyncFolder(folder));
  return Remove(partial);  // the replaced checkpoint
}

void AbandonCheckpoint(const std::string& folder, int64_t step) {
  std::error_code ignored;
  fs::remove_all(PartialCheckpoint(folder, step), ignored);
}

}  // namespace tessera::runtime
