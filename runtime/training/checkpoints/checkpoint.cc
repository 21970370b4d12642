#include "runtime/training/checkpoints/checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/planted.h"
#include "base/status_macros.h"
#include "models/loading/torch_types.h"
#include "models/loading/weight_loader.h"
#include "models/weights/safetensors.h"
#include "models/weights/safetensors_writer.h"
#include "runtime/training/checkpoints/agreement.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/checkpoint_index.h"

namespace tessera::runtime {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;
constexpr size_t kListed = 10;  // names in an error; the rest is counted

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

std::string Listed(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) quoted.push_back(base::Quote(names[i]));
  if (names.size() > kListed) quoted.push_back(absl::StrCat("and ", names.size() - kListed, " more"));
  return absl::StrJoin(quoted, ", ");
}

absl::Status CheckPiece(const Piece& piece) {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(piece.name), ": ", parts...));
  };
  if (!LiesWithin(piece.box, piece.shape)) {
    return error("the part ", BoxText(piece.box), " is outside the shape ", ShapeText(piece.shape));
  }
  if (piece.tensor.sizes() != at::IntArrayRef(piece.box.extent)) {
    return error("the part ", BoxText(piece.box), " is given as a tensor ", ShapeText(piece.tensor.sizes()));
  }
  if (!models::StoredTypeOf(piece.tensor.scalar_type())) {
    return error("numbers of type ", c10::toString(piece.tensor.scalar_type()), " cannot be stored");
  }
  return absl::OkStatus();
}

// What this rank holds, as the other ranks are told.
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

// All ranks' parts in one index, which says who writes what.
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

// Writes the boxes that the plan gives to this rank. Returns the file's digest.
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

// The same elements of a tensor that holds `frame`.
at::Tensor Narrow(const at::Tensor& tensor, const Box& frame, const Box& part) {
  at::Tensor view = tensor;
  for (size_t i = 0; i < part.offset.size(); ++i) {
    view = view.narrow(static_cast<int64_t>(i), part.offset[i] - frame.offset[i], part.extent[i]);
  }
  return view;
}

// Reads boxes from the files of a checkpoint, each of which is opened once.
class BoxReader {
 public:
  BoxReader(const std::string& checkpoint, const CheckpointIndex& index) : checkpoint_(checkpoint), index_(index) {}

  absl::Status Fill(const Piece& piece) {
    const auto found = index_.tensors.find(piece.name);
    if (found == index_.tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint_, ": lacks tensor ", base::Quote(piece.name)));
    }
    const CheckpointTensor& tensor = found->second;
    const models::StoredType type = *models::StoredTypeOf(piece.tensor.scalar_type());
    if (tensor.type != type || tensor.shape != piece.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          checkpoint_, ": tensor ", base::Quote(piece.name), " is ", models::StoredTypeName(tensor.type), " ",
          ShapeText(tensor.shape), "; this run has ", models::StoredTypeName(type), " ", ShapeText(piece.shape)));
    }
    for (const StoredBox& box : tensor.boxes) {
      if (const std::optional<Box> common = Intersect(box.box, piece.box)) {
        RETURN_IF_ERROR(Copy(piece, box, *common));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const models::SafetensorsFile*> File(int64_t rank) {
    const auto found = files_.find(rank);
    if (found != files_.end()) return &found->second;
    const std::string path = absl::StrCat(checkpoint_, "/", RankFileName(rank, index_.ranks));
    ASSIGN_OR_RETURN(models::SafetensorsFile file, models::SafetensorsFile::Open(path, path));
    return &files_.emplace(rank, std::move(file)).first->second;
  }

  // Copies `common` from the stored box to the piece, as many rows at a time as the buffer holds. The rows are read in
  // full and then narrowed.
  absl::Status Copy(const Piece& piece, const StoredBox& from, const Box& common) {
    ASSIGN_OR_RETURN(const models::SafetensorsFile* file, File(from.rank));
    const std::string name = StoredName(piece.name, piece.shape, from.box);
    const models::StoredTensor* stored = file->Find(name);
    if (stored == nullptr || stored->shape != from.box.extent ||
        models::TorchType(stored->type) != piece.tensor.scalar_type()) {
      return absl::DataLossError(
          absl::StrCat(file->name(), ": tensor ", base::Quote(name), " is not as the index says"));
    }
    const int64_t rows = common.extent.empty() ? 1 : common.extent[0];
    const int64_t row_bytes =
        static_cast<int64_t>(stored->bytes()) / (from.box.extent.empty() ? 1 : from.box.extent[0]);
    const int64_t step = std::max<int64_t>(1, kBufferBytes / row_bytes);
    for (int64_t row = 0; row < rows; row += step) {
      Box band = from.box, part = common;  // what is read, and what of it is used
      if (!band.offset.empty()) {
        band.offset[0] = part.offset[0] = common.offset[0] + row;
        band.extent[0] = part.extent[0] = std::min(step, rows - row);
      }
      const at::Tensor buffer = at::empty(band.extent, piece.tensor.options().device(at::kCPU));
      const int64_t first = band.offset.empty() ? 0 : band.offset[0] - from.box.offset[0];
      RETURN_IF_ERROR(file->Read(*stored, static_cast<uint64_t>(first * row_bytes),
                                 {static_cast<std::byte*>(buffer.data_ptr()), buffer.nbytes()}));
      at::Tensor values = Narrow(buffer, band, part);
      if (base::Planted("checkpoint_slice_transposed") && values.dim() == 2 && common != WholeBox(piece.shape)) {
        values = values.t().reshape(values.sizes());
      }
      Narrow(piece.tensor, piece.box, part).copy_(values);
    }
    return absl::OkStatus();
  }

  const std::string& checkpoint_;
  const CheckpointIndex& index_;
  std::map<int64_t, models::SafetensorsFile> files_;
};

absl::Status ReadPieces(const std::string& checkpoint, const CheckpointIndex& index, const FileDigests& digests,
                        std::span<const Piece> pieces, const parallel::Communicator& ranks) {
  // The files are read and digested by the ranks in turn.
  for (int64_t file = ranks.rank(); file < index.ranks; file += ranks.size()) {
    RETURN_IF_ERROR(VerifyRankFile(checkpoint, file, index, digests));
  }
  BoxReader reader(checkpoint, index);
  for (const Piece& piece : pieces) {
    RETURN_IF_ERROR(CheckPiece(piece));
    RETURN_IF_ERROR(reader.Fill(piece));
  }
  return absl::OkStatus();
}

// InvalidArgument if no rank has a place for some tensor of the checkpoint.
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

absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& checkpoint, std::span<const Piece> pieces,
                                               parallel::Communicator& ranks, const ReadCheckpointOptions& options) {
  const at::NoGradGuard no_grad;
  FileDigests digests;
  const absl::StatusOr<CheckpointIndex> index = ReadIndex(checkpoint, &digests);
  RETURN_IF_ERROR(Agree(index.status(), ranks));
  RETURN_IF_ERROR(Agree(ReadPieces(checkpoint, *index, digests, pieces, ranks), ranks));
  if (!options.partial) RETURN_IF_ERROR(CheckAllRead(checkpoint, *index, pieces, ranks));
  return CheckpointState{.step = index->step, .json = index->state};
}

}  // namespace tessera::runtime
