#include "runtime/denoising/step_recorder.h"

#include "runtime/denoising/noise.h"

namespace tessera::runtime {
namespace {

// Returns 1 or −1 for each feature, [features] in fp64.
at::Tensor Signs(int64_t features) {
  at::Tensor signs = at::empty({features}, at::kDouble);
  double* data = signs.mutable_data_ptr<double>();
  for (int64_t i = 0; i < features; ++i) data[i] = Philox4x32({static_cast<uint32_t>(i)}, {})[0] % 2 == 0 ? 1 : -1;
  return signs;
}

}  // namespace

void StepRecorder::Record(int block, std::span<const parallel::TokenRun> runs, const at::Tensor& state) {
  if (runs.empty()) return;
  const at::Tensor values = state.to(at::kDouble);
  const at::Tensor digests =
      at::stack({values.square().sum(-1), values.matmul(Signs(values.size(2)).to(values.device()))},
                /*dim=*/-1)
          .cpu()
          .contiguous();  // [rows, tokens, 2]
  for (int64_t row = 0; row < values.size(0); ++row) {
    const auto* tokens = reinterpret_cast<const control::TokenDigest*>(digests[row].const_data_ptr<double>());
    control::StatePlace place = rows_[static_cast<size_t>(row)];
    place.block = block;
    for (const parallel::TokenRun& run : runs) {
      place.text = run.text;
      const auto count = static_cast<size_t>(run.tokens.count());
      writer_->Write(place, run.tokens.begin, {tokens, count});
      tokens += count;
    }
  }
}

}  // namespace tessera::runtime
