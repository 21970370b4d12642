#include "runtime/engine/rank_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "base/json/json_writer.h"
#include "control/model/model_cost.h"
#include "kernels/ops.h"
#include "runtime/device/device.h"
#include "runtime/device/mark.h"

namespace tessera::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 4;
// A round is repeated until it has about this much work, which one current core does in a tenth of a second.
constexpr double kRoundFlops = 5e9, kRoundBytes = 1e9;
constexpr int64_t kSmallCalls = 500, kSmallElements = 256, kLargeCalls = 8;
constexpr double kEps = 1e-6;

int64_t Repeats(double of_round, double of_one) { return std::max<int64_t>(1, std::lround(of_round / of_one)); }

// The ranks that measure together.
struct Group {
  parallel::Communicator &world, &control;
  at::Device device;
};

// Returns the seconds of `body` on the first `busy` ranks: the minimum of the rounds, after one that is not counted.
double LeastSeconds(const Group& group, int busy, const std::function<void()>& body) {
  double least = 0;
  for (int round = -1; round < kRounds; ++round) {
    group.control.Barrier();
    const Clock::time_point begin = Clock::now();
    if (group.control.rank() < busy) body();
    Mark(group.device).Wait();
    group.control.Barrier();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (round == 0 || (round > 0 && seconds < least)) least = seconds;
  }
  return least;
}

at::Tensor Filled(at::IntArrayRef sizes, const RatedShape& shape) {
  return at::full(sizes, 0.01, at::TensorOptions(shape.dtype).device(shape.device));
}

// The four products of a block with their weights: queries, keys and values; the output projection; and the two of the
// MLP.
class Products {
 public:
  explicit Products(const RatedShape& shape)
      : rows_(shape.rows),
        width_(shape.width),
        narrow_(Filled({1, rows_, width_}, shape)),
        wide_(Filled({1, rows_, 4 * width_}, shape)),
        qkv_(kernels::PackWeight(Filled({3 * width_, width_}, shape))),
        out_(kernels::PackWeight(Filled({width_, width_}, shape))),
        mlp_in_(kernels::PackWeight(Filled({4 * width_, width_}, shape))),
        mlp_out_(kernels::PackWeight(Filled({width_, 4 * width_}, shape))) {}

  double flops() const { return 2 * 12 * static_cast<double>(rows_ * width_ * width_); }
  void Run() const {
    kernels::LinearProduct(narrow_, qkv_, std::nullopt);
    kernels::LinearProduct(narrow_, out_, std::nullopt);
    kernels::LinearGeluTanh(narrow_, mlp_in_, std::nullopt);
    kernels::LinearProduct(wide_, mlp_out_, std::nullopt);
  }

 private:
  const int64_t rows_, width_;
  const at::Tensor narrow_, wide_, qkv_, out_, mlp_in_, mlp_out_;
};

// Runs the operators of a block between its products.
void Between(const at::Tensor& x, const at::Tensor& row, const at::Tensor& packed, const kernels::HeadsOut& heads) {
  const at::Tensor normalised = kernels::LayerNormModulate(x, row, row, kEps);
  kernels::QkvNormRope(packed, {}, {}, {}, heads);
  const auto [sum, again] = kernels::GatedResidualNormModulate(x, row, normalised, row, row, kEps);
  kernels::GatedResidual(sum, row, again);
}

ComputeRates MeasureCompute(const RatedShape& shape, int busy, const Group& group) {
  ComputeRates rates = {.busy = busy};
  {
    const Products products(shape);
    const int64_t times = Repeats(shape.effort * kRoundFlops, products.flops());
    rates.product_flops = static_cast<double>(times) * products.flops() / LeastSeconds(group, busy, [&] {
                            for (int64_t i = 0; i < times; ++i) products.Run();
                          });
  }
  const int64_t width = shape.width, head_dim = width / shape.heads, tokens = shape.tokens;
  const at::Tensor heads = Filled({1, tokens, shape.heads, head_dim}, shape);
  const double attention = 4 * static_cast<double>(width * tokens * tokens);
  int64_t times = Repeats(shape.effort * kRoundFlops, attention);
  rates.attention_flops = static_cast<double>(times) * attention / LeastSeconds(group, busy, [&] {
                            for (int64_t i = 0; i < times; ++i) kernels::Attention(heads, heads, heads, {}, 0.125);
                          });

  const at::Tensor x = Filled({1, tokens, width}, shape), row = Filled({1, width}, shape);
  const at::Tensor packed = Filled({1, tokens, 3 * width}, shape);
  const auto place = [&] { return Filled({1, tokens, 1, shape.heads, head_dim}, shape); };
  const kernels::HeadsOut out = {.q = place(), .k = place(), .v = place()};
  const double bytes = 2 * static_cast<double>(control::kLiveWidths * tokens * width * x.element_size());
  times = Repeats(shape.effort * kRoundBytes, bytes);
  rates.memory_bytes_second = static_cast<double>(times) * bytes / LeastSeconds(group, busy, [&] {
                                for (int64_t i = 0; i < times; ++i) Between(x, row, packed, out);
                              });

  const at::Tensor little = Filled({1, 1, 64}, shape), gate = Filled({1, 64}, shape);
  rates.operator_seconds = LeastSeconds(group, busy,
                                        [&] {
                                          for (int64_t i = 0; i < kSmallCalls; ++i)
                                            kernels::GatedResidual(little, gate, little);
                                        }) /
                           static_cast<double>(kSmallCalls);
  return rates;
}

ExchangeRates MeasureExchange(const RatedShape& shape, const Group& group) {
  parallel::Communicator& world = group.world;
  const int ranks = world.size();
  const int64_t elements = shape.exchanged_elements;
  const auto exchange = [&](int64_t count) {
    std::vector<at::Tensor> send, receive;
    for (int r = 0; r < ranks; ++r) {
      send.push_back(Filled({count}, shape));
      receive.push_back(Filled({count}, shape));
    }
    return [&world, send = std::move(send), receive = std::move(receive)](int64_t calls) {
      for (int64_t i = 0; i < calls; ++i) world.AllToAll(send, receive);
    };
  };
  ExchangeRates rates;
  const auto small = exchange(kSmallElements), large = exchange(elements);
  rates.seconds = LeastSeconds(group, ranks, [&] { small(kSmallCalls); }) / static_cast<double>(kSmallCalls);
  const double sent = static_cast<double>((ranks - 1) * elements * static_cast<int64_t>(at::elementSize(shape.dtype)));
  rates.bytes_second = sent * kLargeCalls / LeastSeconds(group, ranks, [&] { large(kLargeCalls); });
  const at::Tensor summed = Filled({ranks * elements}, shape);
  rates.sum_bytes_second = 2 * sent * kLargeCalls / LeastSeconds(group, ranks, [&] {
                             for (int64_t i = 0; i < kLargeCalls; ++i) world.Sum(summed, summed);
                           });
  return rates;
}

}  // namespace

RatedShape ShapeFor(at::Device device, at::ScalarType dtype, int64_t width, int64_t heads) {
  RatedShape shape = {.dtype = dtype, .width = width, .heads = heads, .device = device};
  if (device.is_cpu()) return shape;
  // An image of 1024x1024, and a thousand times the work of a core.
  shape.rows = shape.tokens = 4096;
  shape.exchanged_elements = 1 << 24;
  shape.effort = 1000;
  return shape;
}

RankRates MeasureRankRates(const RatedShape& shape, parallel::Communicator& world, parallel::Communicator& control) {
  const c10::InferenceMode no_gradients;
  const Group group = {.world = world, .control = control, .device = shape.device};
  RankRates rates;
  if (const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(shape.device)) {
    rates.memory_bytes = memory->total;
  }
  for (int busy = 1; busy <= world.size(); ++busy) {
    if (world.size() % busy == 0) rates.compute.push_back(MeasureCompute(shape, busy, group));
  }
  if (world.size() > 1) rates.exchange = MeasureExchange(shape, group);
  return rates;
}

std::string JsonOf(const RankRates& rates) {
  base::JsonWriter writer;
  writer.BeginObject();
  if (rates.memory_bytes > 0) writer.Key("device").String(rates.device).Key("memory_bytes").Int(rates.memory_bytes);
  writer.Key("compute").BeginArray();
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
