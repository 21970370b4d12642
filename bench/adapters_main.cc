// Measures the cost of an adapter, as `bench_adapters FOLDER [rounds [blocks]]`: alternating forward passes of a PixArt
// of XL width at 512x512 (two branches, bf16, random weights) with and without one rank-16 adapter on the attentions'
// products; and reading an adapter of 300 MB. The file is written to FOLDER, read from the page cache and removed.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/adapters/adapter.h"
#include "models/pixart/pixart_transformer.h"
#include "models/weights/safetensors_writer.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHeads = 16, kHeadDim = 72, kTextTokens = 120, kTextWidth = 4096, kLatentSide = 64, kPatch = 2;
constexpr int64_t kRank = 16;

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The modules that PEFT's examples adapt.
bool IsAdapted(const std::string& module) {
  for (const char* end : {".to_q", ".to_k", ".to_v", ".to_out.0"}) {
    if (absl::EndsWith(module, end)) return true;
  }
  return false;
}

void PassWithAndWithout(int rounds, int64_t blocks) {
  const c10::InferenceMode no_gradients;
  models::ParamTable table(at::kBFloat16, at::kCPU);
  const models::PixArtTransformer transformer({.heads = kHeads,
                                               .head_dim = kHeadDim,
                                               .layers = blocks,
                                               .in_channels = 4,
                                               .out_channels = 8,
                                               .patch = kPatch,
                                               .sample_size = kLatentSide,
                                               .caption_channels = kTextWidth},
                                              table);
  for (const models::Param& param : table.params()) param.Value().normal_(0, 0.02);
  parallel::AdapterFactors adapters;
  for (const models::ProductSpec& product : table.products()) {
    if (!IsAdapted(product.name)) continue;
    adapters.Add(product.name, {.a = at::randn({kRank, product.in}).to(at::kBFloat16),
                                .b = at::randn({product.out, kRank}).mul_(0.01).to(at::kBFloat16),
                                .scale = 1});
  }
  table.PackForInference();
  const int64_t side = kLatentSide / kPatch, tokens = side * side;
  const models::TransformerInput input{.patches = at::randn({2, tokens, 4 * kPatch * kPatch}).to(at::kBFloat16),
                                       .grid = {.height = side, .width = side},
                                       .span = {.begin = 0, .end = tokens},
                                       .timestep = at::full({2}, 500, at::kDouble),
                                       .text = at::randn({2, kTextTokens, kTextWidth}).to(at::kBFloat16),
                                       .text_mask = at::ones({2, kTextTokens}),
                                       .extras = {}};
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const auto seconds = [&](const parallel::AdapterFactors* factors) {
    const parallel::ForwardContext context{.attention = attention, .tensor = one, .world = one, .adapters = factors};
    const Clock::time_point begin = Clock::now();
    models::RunTransformer(transformer, input, context);
    return Seconds(begin);
  };
  std::vector<double> plain, adapted, ratios, processor_ratios;
  seconds(nullptr);
  seconds(&adapters);
  for (int i = 0; i < rounds; ++i) {
    const std::clock_t begin = std::clock();
    plain.push_back(seconds(nullptr));
    const std::clock_t middle = std::clock();
    adapted.push_back(seconds(&adapters));
    ratios.push_back(adapted.back() / plain.back());
    processor_ratios.push_back(static_cast<double>(std::clock() - middle) / static_cast<double>(middle - begin));
  }
  std::printf("a pass of %d blocks without an adapter: %.4f s, with one of rank %d: %.4f s, median ratio %.3f\n",
              static_cast<int>(blocks), Median(plain), static_cast<int>(kRank), Median(adapted), Median(ratios));
  // Processor time is the measure that other programs disturb least. Waiting threads must not spin
  // (OMP_WAIT_POLICY=passive).
  std::printf("median ratio of processor time: %.3f\n", Median(processor_ratios));
}

// The modules have FLUX.1's width and a rank for a file of about 300 MB.
void ReadLargeFile(const std::string& folder) {
  constexpr int64_t kWidth = 3072, kFileRank = 64, kModules = 380;
  const std::string path = folder + "/bench-adapter.safetensors";
  models::AdaptableModel model;
  std::vector<models::TensorEntry> entries;
  for (int64_t i = 0; i < kModules; ++i) {
    const std::string module = absl::StrCat("blocks.", i, ".to_q");
    models::ProductSpec product;
    product.name = module;
    product.out = product.in = kWidth;
    model.components["transformer"].push_back(product);
    for (const auto& [end, shape] : {std::pair(".lora_A.weight", std::vector<int64_t>{kFileRank, kWidth}),
                                     std::pair(".lora_B.weight", std::vector<int64_t>{kWidth, kFileRank})}) {
      entries.push_back(
          {.name = absl::StrCat("transformer.", module, end), .type = models::StoredType::kBF16, .shape = shape});
    }
  }
  absl::StatusOr<models::SafetensorsWriter> writer = models::SafetensorsWriter::Create(path, entries, {});
  if (!writer.ok()) return static_cast<void>(std::fprintf(stderr, "%s\n", writer.status().ToString().c_str()));
  const at::Tensor values = at::randn({kFileRank, kWidth}).to(at::kBFloat16);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes());
  for (const models::TensorEntry& entry : entries) {
    if (!writer->Append(entry.name, bytes).ok()) return;
  }
  if (!writer->Finish().ok()) return;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    std::vector<double> seconds, processor_seconds;
    int64_t size = 0;
    for (int i = 0; i < 5; ++i) {
      const Clock::time_point begin = Clock::now();
      const std::clock_t processor_begin = std::clock();
      const absl::StatusOr<models::Adapter> adapter = models::ReadAdapter(path, model, {.dtype = dtype});
      seconds.push_back(Seconds(begin));
      processor_seconds.push_back(static_cast<double>(std::clock() - processor_begin) / CLOCKS_PER_SEC);
      if (!adapter.ok()) return static_cast<void>(std::fprintf(stderr, "%s\n", adapter.status().ToString().c_str()));
      size = adapter->bytes;
    }
    std::printf(
        "an adapter of %.0f MB read from the page cache, checked and hashed, into %.0f MB of %s: %.3f s (%.3f s of "
        "processor time)\n",
        static_cast<double>(std::filesystem::file_size(path)) / 1e6, static_cast<double>(size) / 1e6,
        c10::toString(dtype), Median(seconds), Median(processor_seconds));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_adapters FOLDER [rounds [blocks]]\n");
    return 2;
  }
  at::set_num_threads(2);
  tessera::ReadLargeFile(argv[1]);
  tessera::PassWithAndWithout(argc > 2 ? std::atoi(argv[2]) : 9, argc > 3 ? std::atoi(argv[3]) : 8);
  return 0;
}
