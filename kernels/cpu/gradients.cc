// Gradients of the operators that make one pass over rows of channels.
#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"

namespace tessera::kernels::cpu {
namespace {

at::Tensor WithContiguousChannels(const at::Tensor& vector) {
  return vector.stride(-1) == 1 ? vector : vector.contiguous();
}

// Holds `vectors` sums over the rows of each image. Rows are summed in order within each piece and the pieces are
// summed in order, so that no sum depends on the number of threads.
class RowSums {
 public:
  RowSums(const at::Tensor& x, int64_t vectors)
      : rows_(x.size(1)),
        pieces_((rows_ + kRowsOfAPiece - 1) / kRowsOfAPiece),
        sums_(at::zeros({x.size(0), pieces_, vectors, x.size(2)}, x.options().dtype(at::kFloat))) {}

  // Calls body(rows, sums) for every piece; `vector_stride` is that of Rows.
  template <typename Body>
  void ForPieces(int64_t vector_stride, const Body& body) const {
    const int64_t channels = sums_.size(3), of_piece = sums_.size(2) * channels;
    const int64_t grain = std::max<int64_t>(1, kGrainElements / (kRowsOfAPiece * channels));
    float* const sums = sums_.mutable_data_ptr<float>();
    ParallelFor(sums_.size(0) * pieces_, grain, [&](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece) {
        const int64_t image = piece / pieces_, begin = piece % pieces_ * kRowsOfAPiece;
        body(Rows{.first = image * rows_ + begin,
                  .last = image * rows_ + std::min(begin + kRowsOfAPiece, rows_),
                  .channels = channels,
                  .rows_per_batch = rows_,
                  .vector_stride = vector_stride},
             sums + piece * of_piece);
      }
    });
  }

  // Returns the sum number `vector`, in the shape of `like`: one per image, or one for all.
  at::Tensor Of(int64_t vector, const at::Tensor& like) const {
    const at::Tensor of_images = sums_.select(2, vector).sum(1);
    return (like.dim() == 1 ? of_images.sum(0) : of_images).to(like.scalar_type());
  }

 private:
  static constexpr int64_t kRowsOfAPiece = 64;

  int64_t rows_, pieces_;
  at::Tensor sums_;  // [b, pieces, vectors, c]
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> NormModulateBackward(const at::Tensor& of_out, const at::Tensor& of_sum,
                                                                    const at::Tensor& x, const at::Tensor& factor,
                                                                    double offset, double eps, Isa isa) {
  const at::Tensor in = x.contiguous(), of = of_out.contiguous(), factors = WithContiguousChannels(factor);
  const at::Tensor added = of_sum.defined() ? of_sum.contiguous() : of_sum;
  at::Tensor of_x = at::empty_like(in);
  const RowSums sums(in, 2);
  sums.ForPieces(ImageStride(factors), [&](const Rows& rows, float* of_vectors) {
    ElementwiseFor(isa).norm_backward(ElementOf(in), rows, of.const_data_ptr(),
                                      added.defined() ? added.const_data_ptr() : nullptr, in.const_data_ptr(),
                                      factors.const_data_ptr(), static_cast<float>(offset), static_cast<float>(eps),
                                      of_x.mutable_data_ptr(), of_vectors, of_vectors + rows.channels);
  });
  return {of_x, sums.Of(0, factor), sums.Of(1, factor)};
}

std::tuple<at::Tensor, at::Tensor> GatedResidualBackward(const at::Tensor& of_sum, const at::Tensor& gate,
                                                         const at::Tensor& y, Isa isa) {
  const at::Tensor in = y.contiguous(), of = of_sum.contiguous(), gates = WithContiguousChannels(gate);
  at::Tensor of_y = at::empty_like(in);
  const RowSums sums(in, 1);
  sums.ForPieces(ImageStride(gates), [&](const Rows& rows, float* of_gate) {
    ElementwiseFor(isa).gate_backward(ElementOf(in), rows, of.const_data_ptr(), gates.const_data_ptr(),
                                      in.const_data_ptr(), of_y.mutable_data_ptr(), of_gate);
  });
  return {sums.Of(0, gate), of_y};
}

at::Tensor GeluTanhBackward(const at::Tensor& of_out, const at::Tensor& x, Isa isa) {
  const at::Tensor in = x.contiguous(), of = of_out.contiguous();
  at::Tensor of_x = at::empty_like(in);
  const int64_t size = in.element_size();
  ParallelFor(in.numel(), kGrainElements, [&](int64_t first, int64_t last) {
    const auto at = [&](const void* data) { return static_cast<const char*>(data) + first * size; };
    ElementwiseFor(isa).gelu_tanh_backward(ElementOf(in), last - first, at(of.const_data_ptr()),
                                           at(in.const_data_ptr()),
                                           static_cast<char*>(of_x.mutable_data_ptr()) + first * size);
  });
  return of_x;
}

}  // namespace tessera::kernels::cpu
