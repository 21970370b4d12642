#include "runtime/training/checkpoints/checkpoint_reader.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/loading/torch_types.h"
#include "models/loading/weight_loader.h"

namespace tessera::runtime {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Returns the elements of `part` in a tensor that holds `frame`.
at::Tensor Narrow(const at::Tensor& tensor, const Box& frame, const Box& part) {
  at::Tensor view = tensor;
  for (size_t i = 0; i < part.offset.size(); ++i) {
    view = view.narrow(static_cast<int64_t>(i), part.offset[i] - frame.offset[i], part.extent[i]);
  }
  return view;
}

}  // namespace

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

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& checkpoint) {
  FileDigests digests;
  ASSIGN_OR_RETURN(CheckpointIndex index, ReadIndex(checkpoint, &digests));
  return CheckpointReader(checkpoint, std::move(index), std::move(digests));
}

absl::Status CheckpointReader::Fill(const Piece& piece) {
  const at::NoGradGuard no_grad;
  RETURN_IF_ERROR(CheckPiece(piece));
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

absl::StatusOr<at::Tensor> CheckpointReader::Read(const std::string& tensor) {
  const auto found = index_.tensors.find(tensor);
  if (found == index_.tensors.end()) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint_, ": lacks tensor ", base::Quote(tensor)));
  }
  const std::vector<int64_t>& shape = found->second.shape;
  const std::optional<at::ScalarType> type = models::TorchType(found->second.type);
  if (!type) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint_, ": tensor ", base::Quote(tensor), " is ",
                                                   models::StoredTypeName(found->second.type),
                                                   ", which this program does not compute with"));
  }
  const Piece piece{.name = tensor, .shape = shape, .box = WholeBox(shape), .tensor = at::empty(shape, *type)};
  RETURN_IF_ERROR(Fill(piece));
  return piece.tensor;
}

absl::StatusOr<const models::SafetensorsFile*> CheckpointReader::File(int64_t rank) {
  const auto found = files_.find(rank);
  if (found != files_.end()) return &found->second;
  const std::string path = absl::StrCat(checkpoint_, "/", RankFileName(rank, index_.ranks));
  ASSIGN_OR_RETURN(models::SafetensorsFile file, models::SafetensorsFile::Open(path, path));
  return &files_.emplace(rank, std::move(file)).first->second;
}

absl::Status CheckpointReader::Copy(const Piece& piece, const StoredBox& from, const Box& common) {
  ASSIGN_OR_RETURN(const models::SafetensorsFile* file, File(from.rank));
  const std::string name = StoredName(piece.name, piece.shape, from.box);
  const models::StoredTensor* stored = file->Find(name);
  if (stored == nullptr || stored->shape != from.box.extent ||
      models::TorchType(stored->type) != piece.tensor.scalar_type()) {
    return absl::DataLossError(absl::StrCat(file->name(), ": tensor ", base::Quote(name), " differs from the index"));
  }
  const int64_t rows = common.extent.empty() ? 1 : common.extent[0];
  const int64_t row_bytes = static_cast<int64_t>(stored->bytes()) / (from.box.extent.empty() ? 1 : from.box.extent[0]);
  const int64_t step = std::max<int64_t>(1, kBufferBytes / row_bytes);
  for (int64_t row = 0; row < rows; row += step) {
    Box band = from.box, part = common;  // the box to be read, and the part of it to be used
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

}  // namespace tessera::runtime
