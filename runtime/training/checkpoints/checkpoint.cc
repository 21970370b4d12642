#include "runtime/training/checkpoints/checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/loading/torch_types.h"
#include "models/weights/safetensors_writer.h"
#include "runtime/training/checkpoints/agreement.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/checkpoint_index.h"
#include "runtime/training/checkpoints/checkpoint_reader.h"

namespace tessera::runtime {
namespace {

constexpr size_t kListed = 10;  // names in an error; the rest is counted

std::string Listed(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) quoted.push_back(base::Quote(names[i]));
  if (names.size() > kListed) quoted.push_back(absl::StrCat("and ", names.size() - kListed, " more"));
  return absl::StrJoin(quoted, ", ");
}

// Returns the list of what this rank holds, which is sent to the other ranks.
absl::StatusOr<CheckpointIndex> Describe(const CheckpointState& state, std::span<const Piece> pieces, int64_t ranks) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(state.json, "the state of the run"));
  if (!json.is_object()) return absl::InvalidArgumentError("the state of the run must be a JSON object");
  CheckpointIndex index{.step = state.step, .ranks = 1, .state = state.json};
  if (base::Planted("checkpoint_step_merged")) index.step *= ranks;
  for (const Piece& piece : pieces) {
    RETURN_IF_ERROR(CheckPiece(piece));
    if (base::Planted("checkpoint_optimizer_key_dropped") && piece.name.starts_with("exp_avg_sq.")) continue;
    const models::StoredType type = *models::StoredTypeOf(piece.tensor.scalar_type());
    const auto [it, is_new] =
        index.tensors.try_emplace(piece.name, CheckpointTensor{.type = type, .shape = piece.shape});
    if (it->second.type != type || it->second.shape != piece.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", base::Quote(piece.name), " has parts of different types or shapes"));
    }
    if (piece.tensor.numel() > 0) it->second.boxes.push_back({.box = piece.box, .rank = 0});
  }
  return index;
}

// Merges all ranks' parts into one index, which determines the writer of each.
absl::StatusOr<CheckpointIndex> Plan(const CheckpointState& state, std::span<const Piece> pieces,
                                     parallel::Communicator& ranks) {
  const absl::StatusOr<CheckpointIndex> own = Describe(state, pieces, ranks.size());
  RETURN_IF_ERROR(Agree(own.status(), ranks));
  std::vector<CheckpointIndex> held;
  for (const std::string& text : GatherTexts(IndexJson(*own), ranks)) {
    ASSIGN_OR_RETURN(CheckpointIndex index, ParseIndex(text, "the description of what a rank holds"));
    held.push_back(std::move(index));
  }
  return MergeIndexes(held);
}

std::span<const std::byte> BytesOf(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

// Writes the boxes that the plan assigns to this rank. Returns the file's digest.
absl::StatusOr<std::string> WriteRankFile(const std::string& path, const CheckpointIndex& plan,
                                          std::span<const Piece> pieces, int64_t rank) {
  std::vector<std::pair<models::TensorEntry, const Piece*>> parts;
  for (const Piece& piece : pieces) {
    const auto tensor = plan.tensors.find(piece.name);
    if (tensor == plan.tensors.end()) continue;
    const std::vector<StoredBox>& boxes = tensor->second.boxes;
    if (std::find(boxes.begin(), boxes.end(), StoredBox{.box = piece.box, .rank = rank}) == boxes.end()) continue;
    parts.push_back({{.name = StoredName(piece.name, piece.shape, piece.box),
                      .type = tensor->second.type,
                      .shape = piece.box.extent},
                     &piece});
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return models::StoredTypeSize(a.first.type) > models::StoredTypeSize(b.first.type);
  });
  std::vector<models::TensorEntry> entries;
  for (const auto& [entry, piece] : parts) entries.push_back(entry);
  ASSIGN_OR_RETURN(models::SafetensorsWriter writer,
                   models::SafetensorsWriter::Create(path, entries, {{"format", "pt"}}));
  for (const auto& [entry, piece] : parts) {
    const at::Tensor values = piece->tensor.detach().to(at::kCPU).contiguous();
    RETURN_IF_ERROR(writer.Append(entry.name, BytesOf(values)));
  }
  ASSIGN_OR_RETURN(models::WrittenFile written, writer.Finish());
  return std::move(written.sha256);
}

absl::Status WriteFiles(const std::string& folder, const CheckpointIndex& plan, std::span<const Piece> pieces,
                        parallel::Communicator& ranks) {
  const int64_t rank = ranks.rank();
  const absl::StatusOr<std::string> partial =
      rank == 0 ? BeginCheckpoint(folder, plan.step) : PartialCheckpoint(folder, plan.step);
  RETURN_IF_ERROR(Agree(partial.status(), ranks));
  const absl::StatusOr<std::string> digest =
      WriteRankFile(absl::StrCat(*partial, "/", RankFileName(rank, ranks.size())), plan, pieces, rank);
  RETURN_IF_ERROR(Agree(digest.status(), ranks));
  FileDigests digests;
  const std::vector<std::string> all = GatherTexts(*digest, ranks);
  for (size_t i = 0; i < all.size(); ++i) digests[RankFileName(static_cast<int64_t>(i), plan.ranks)] = all[i];
  return Agree(rank == 0 ? FinishCheckpoint(folder, plan, std::move(digests)) : absl::OkStatus(), ranks);
}

absl::Status ReadPieces(CheckpointReader& reader, std::span<const Piece> pieces, const parallel::Communicator& ranks) {
  // The files are distributed over the ranks in turn, each of which reads and digests its share.
  for (int64_t file = ranks.rank(); file < reader.index().ranks; file += ranks.size()) {
    RETURN_IF_ERROR(reader.Verify(file));
  }
  for (const Piece& piece : pieces) RETURN_IF_ERROR(reader.Fill(piece));
  return absl::OkStatus();
}

// Returns InvalidArgument if the checkpoint has a tensor that no rank reads.
absl::Status CheckAllRead(const std::string& checkpoint, const CheckpointIndex& index, std::span<const Piece> pieces,
                          parallel::Communicator& ranks) {
  const std::string own = absl::StrJoin(pieces, "\n", [](std::string* out, const Piece& p) { out->append(p.name); });
  std::set<std::string> read;
  for (const std::string& names : GatherTexts(own, ranks)) {
    for (const absl::string_view name : absl::StrSplit(names, '\n')) read.emplace(name);
  }
  std::vector<std::string> unread;
  for (const auto& [name, tensor] : index.tensors) {
    if (!read.contains(name)) unread.push_back(name);
  }
  if (unread.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(checkpoint, ": this run has no place for its tensors ", Listed(unread)));
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& folder, const CheckpointState& state, std::span<const Piece> pieces,
                             parallel::Communicator& ranks) {
  const at::NoGradGuard no_grad;
  ASSIGN_OR_RETURN(const CheckpointIndex plan, Plan(state, pieces, ranks));
  const absl::Status status = WriteFiles(folder, plan, pieces, ranks);
  if (!status.ok() && ranks.rank() == 0) AbandonCheckpoint(folder, plan.step);
  return status;
}

absl::StatusOr<SetAside> WriteHead(const std::string& folder, const CheckpointState& state,
                                   std::span<const Piece> pieces, parallel::Communicator& ranks) {
  const absl::Status written = WriteCheckpoint(HeadFolder(folder), state, pieces, ranks);
  absl::StatusOr<SetAside> aside = SetAside();
  if (ranks.rank() == 0) aside = written.ok() ? SetAsideForHead(folder) : FinishSetAside(folder);
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(Agree(aside.status(), ranks));
  return aside;
}

absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& checkpoint, std::span<const Piece> pieces,
                                               parallel::Communicator& ranks, const ReadCheckpointOptions& options) {
  const at::NoGradGuard no_grad;
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(checkpoint);
  RETURN_IF_ERROR(Agree(reader.status(), ranks));
  RETURN_IF_ERROR(Agree(ReadPieces(*reader, pieces, ranks), ranks));
  const CheckpointIndex& index = reader->index();
  if (!options.partial) RETURN_IF_ERROR(CheckAllRead(checkpoint, index, pieces, ranks));
  return CheckpointState{.step = index.step, .json = index.state};
}

}  // namespace tessera::runtime
