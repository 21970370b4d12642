#include "runtime/engine/rank_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "base/json_writer.h"
#include "control/step_memory.h"
#include "kernels/ops.h"

namespace tessera::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 4;
// A round is repeated until it has about so much work, which a core of today does in a tenth of a second.
constexpr double kRoundFlops = 5e9, kRoundBytes = 1e9;
constexpr int64_t kProductRows = 256, kTokens = 1024;
constexpr int64_t kSmallCalls = 500, kSmallElements = 256, kLargeElements = 1 << 20, kLargeCalls = 8;
constexpr double kEps = 1e-6;

int64_t Repeats(double of_round, double of_one) { return std::max<int64_t>(1, std::lround(of_round / of_one)); }

// Seconds of `body` on the first `busy` ranks: the least of the rounds, after one that is not counted.
double LeastSeconds(parallel::Communicator& world, int busy, const std::function<void()>& body) {
  double least = 0;
  for (int round = -1; round < kRounds; ++round) {
    world.Barrier();
    const Clock::time_point begin = Clock::now();
    if (world.rank() < busy) body();
    world.Barrier();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (round == 0 || (round > 0 && seconds < least)) least = seconds;
  }
  return least;
}

at::Tensor Filled(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::full(sizes, 0.01, at::TensorOptions(dtype));
}

// The four products of a block with their weights: queries, keys and values, the way back, and both of the MLP.
class Products {
 public:
  explicit Products(const RatedShape& shape)
      : width_(shape.width),
        narrow_(Filled({1, kProductRows, width_}, shape.dtype)),
        wide_(Filled({1, kProductRows, 4 * width_}, shape.dtype)),
        qkv_(kernels::PackWeight(Filled({3 * width_, width_}, shape.dtype))),
        out_(kernels::PackWeight(Filled({width_, width_}, shape.dtype))),
        mlp_in_(kernels::PackWeight(Filled({4 * width_, width_}, shape.dtype))),
        mlp_out_(kernels::PackWeight(Filled({width_, 4 * width_}, shape.dtype))) {}

  double flops() const { return 2 * 12 * static_cast<double>(kProductRows * width_ * width_); }
  void Run() const {
    kernels::LinearProduct(narrow_, qkv_, std::nullopt);
    kernels::LinearProduct(narrow_, out_, std::nullopt);
    kernels::LinearGeluTanh(narrow_, mlp_in_, std::nullopt);
    kernels::LinearProduct(wide_, mlp_out_, std::nullopt);
  }

 private:
  const int64_t width_;
  const at::Tensor narrow_, wide_, qkv_, out_, mlp_in_, mlp_out_;
};

// What a block does to its tokens between products.
void Between(const at::Tensor& x, const at::Tensor& row, const at::Tensor& packed, const kernels::HeadsOut& heads) {
  const at::Tensor normalised = kernels::LayerNormModulate(x, row, row, kEps);
  kernels::QkvNormRope(packed, {}, {}, {}, heads);
  const auto [sum, again] = kernels::GatedResidualNormModulate(x, row, normalised, row, row, kEps);
  kernels::GatedResidual(sum, row, again);
}

ComputeRates MeasureCompute(const RatedShape& shape, int busy, parallel::Communicator& world) {
  ComputeRates rates = {.busy = busy};
  {
    const Products products(shape);
    const int64_t times = Repeats(shape.effort * kRoundFlops, products.flops());
    rates.product_flops = static_cast<double>(times) * products.flops() / LeastSeconds(world, busy, [&] {
                            for (int64_t i = 0; i < times; ++i) products.Run();
                          });
  }
  const int64_t width = shape.width, head_dim = width / shape.heads;
  const at::Tensor heads = Filled({1, kTokens, shape.heads, head_dim}, shape.dtype);
  const double attention = 4 * static_cast<double>(width) * kTokens * kTokens;
  int64_t times = Repeats(shape.effort * kRoundFlops, attention);
  rates.attention_flops = static_cast<double>(times) * attention / LeastSeconds(world, busy, [&] {
                            for (int64_t i = 0; i < times; ++i) kernels::Attention(heads, heads, heads, {}, 0.125);
                          });

  const at::Tensor x = Filled({1, kTokens, width}, shape.dtype), row = Filled({1, width}, shape.dtype);
  const at::Tensor packed = Filled({1, kTokens, 3 * width}, shape.dtype);
  const auto place = [&] { return Filled({1, kTokens, 1, shape.heads, head_dim}, shape.dtype); };
  const kernels::HeadsOut out = {.q = place(), .k = place(), .v = place()};
  const double bytes = 2 * static_cast<double>(control::kLiveWidths * kTokens * width * x.element_size());
  times = Repeats(shape.effort * kRoundBytes, bytes);
  rates.memory_bytes_second = static_cast<double>(times) * bytes / LeastSeconds(world, busy, [&] {
                                for (int64_t i = 0; i < times; ++i) Between(x, row, packed, out);
                              });

  const at::Tensor little = Filled({1, 1, 64}, shape.dtype), gate = Filled({1, 64}, shape.dtype);
  rates.operator_seconds = LeastSeconds(world, busy,
                                        [&] {
                                          for (int64_t i = 0; i < kSmallCalls; ++i)
                                            kernels::GatedResidual(little, gate, little);
                                        }) /
                           static_cast<double>(kSmallCalls);
  return rates;
}

ExchangeRates MeasureExchange(at::ScalarType dtype, parallel::Communicator& world) {
  const int ranks = world.size();
  const auto exchange = [&](int64_t elements) {
    std::vector<at::Tensor> send, receive;
    for (int r = 0; r < ranks; ++r) {
      send.push_back(Filled({elements}, dtype));
      receive.push_back(Filled({elements}, dtype));
    }
    return [&world, send = std::move(send), receive = std::move(receive)](int64_t calls) {
      for (int64_t i = 0; i < calls; ++i) world.AllToAll(send, receive);
    };
  };
  ExchangeRates rates;
  const auto small = exchange(kSmallElements), large = exchange(kLargeElements);
  rates.seconds = LeastSeconds(world, ranks, [&] { small(kSmallCalls); }) / static_cast<double>(kSmallCalls);
  const double sent = static_cast<double>((ranks - 1) * kLargeElements * static_cast<int64_t>(at::elementSize(dtype)));
  rates.bytes_second = sent * kLargeCalls / LeastSeconds(world, ranks, [&] { large(kLargeCalls); });
  const at::Tensor summed = Filled({ranks * kLargeElements}, dtype);
  rates.sum_bytes_second = 2 * sent * kLargeCalls / LeastSeconds(world, ranks, [&] {
                             for (int64_t i = 0; i < kLargeCalls; ++i) world.Sum(summed, summed);
                           });
  return rates;
}

}  // namespace

RankRates MeasureRankRates(const RatedShape& shape, parallel::Communicator& world) {
  const c10::InferenceMode no_gradients;
  RankRates rates;
  for (int busy = 1; busy <= world.size(); ++busy) {
    if (world.size() % busy == 0) rates.compute.push_back(MeasureCompute(shape, busy, world));
  }
  if (world.size() > 1) rates.exchange = MeasureExchange(shape.dtype, world);
  return rates;
}

std::string JsonOf(const RankRates& rates) {
  base::JsonWriter writer;
  writer.BeginObject().Key("compute").BeginArray();
  for (const ComputeRates& compute : rates.compute) {
    writer.BeginObject().Key("busy").Int(compute.busy).Key("product_flops").Number(compute.product_flops);
    writer.Key("attention_flops").Number(compute.attention_flops);
    writer.Key("memory_bytes_second").Number(compute.memory_bytes_second);
    writer.Key("operator_seconds").Number(compute.operator_seconds).EndObject();
  }
  writer.EndArray();
  if (rates.exchange.has_value()) {
    writer.Key("exchange").BeginObject().Key("seconds").Number(rates.exchange->seconds);
    writer.Key("bytes_second").Number(rates.exchange->bytes_second);
    writer.Key("sum_bytes_second").Number(rates.exchange->sum_bytes_second).EndObject();
  }
  return writer.EndObject().text();
}

}  // namespace tessera::runtime
