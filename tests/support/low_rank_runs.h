// Runs products with low-rank factors on any number of ranks, which are threads: a column product of three packed parts
// followed by a row product of two, as in a transformer block.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "models/adapters/adapter.h"
#include "models/layers/linear.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

class LowRankRuns {
 public:
  // Returns the largest difference between `ranks` ranks and one, over the outputs and all gradients (of x and of each
  // rank's part of every factor), relative to the largest expected value of each.
  static double WorstError(int ranks) {
    const Result whole = Run(0, 1, nullptr);
    std::vector<double> worst(static_cast<size_t>(ranks), 0);
    RunRanks(ranks, [&](ThreadRank& rank) {
      const Result own = Run(rank.rank(), ranks, &rank.world());
      double& error = worst[static_cast<size_t>(rank.rank())];
      const auto compare = [&](const at::Tensor& actual, const at::Tensor& expected) {
        error = std::max(error, ((actual - expected).abs().max() / expected.abs().max()).item<double>());
      };
      compare(own.y, whole.y);
      compare(own.x_gradient, whole.x_gradient);
      for (size_t i = 0; i < own.modules.size(); ++i) {
        const parallel::LowRankFactors part =
            models::ShardOf(whole.gradients[i], whole.modules[i], {.rank = rank.rank(), .size = ranks});
        compare(own.gradients[i].a, part.a);
        compare(own.gradients[i].b, part.b);
      }
    });
    return *std::ranges::max_element(worst);
  }

 private:
  static constexpr int64_t kIn = 6, kOut = 5, kRank = 2;

  struct Result {
    at::Tensor y, x_gradient;
    std::vector<models::ProductSpec> modules;
    std::vector<parallel::LowRankFactors> gradients;  // of the modules' factors
  };

  static void Fill(const models::ParamTable& table, const models::TensorShard& shard) {
    for (const models::Param& param : table.params()) {
      const uint64_t seed = param.spec.name.size() * 7 + static_cast<uint64_t>(param.spec.shape[0]);
      at::Tensor whole = Random(param.spec.shape, seed);
      const bool is_weight = param.spec.shape.size() == 2;
      if (!is_weight) whole = whole.unsqueeze(1);
      const models::ProductSpec module{
          .name = "", .out = whole.size(0), .in = whole.size(1), .role = param.spec.role, .parts = param.spec.parts};
      // A weight is sharded by rows like B, or by columns like A.
      const parallel::LowRankFactors part =
          models::ShardOf({.a = whole, .b = whole}, module,
                          param.spec.role == models::LinearRole::kReplicated ? models::TensorShard() : shard);
      const at::Tensor own = param.spec.role == models::LinearRole::kRow ? part.a : part.b;
      param.Value().copy_(is_weight ? own : own.squeeze(1));
    }
  }

  static Result Run(int rank, int ranks, parallel::Communicator* group) {
    const models::TensorShard shard{.rank = rank, .size = ranks};
    models::ParamTable table(at::kDouble, at::kCPU, {.tensor = shard});
    const models::ParamScope root(table);
    const models::Linear column(root, kIn, {{"to_q", 4}, {"to_k", 4}, {"mlp", 8}},
                                {.role = models::LinearRole::kColumn});
    const models::Linear row(root / "out", 16, kOut, {.role = models::LinearRole::kRow, .parts = {4, 4, 8}});
    Fill(table, shard);

    Result result;
    result.modules = table.products();
    parallel::AdapterFactors adapters;
    std::vector<parallel::LowRankFactors> leaves;
    for (const models::ProductSpec& module : result.modules) {
      const auto seed = static_cast<uint64_t>(leaves.size());
      parallel::LowRankFactors own = models::ShardOf(
          {.a = Random({kRank, module.in}, 100 + seed), .b = Random({module.out, kRank}, 200 + seed), .scale = 0.7},
          module, shard);
      own.a = own.a.clone().requires_grad_(true);
      own.b = own.b.clone().requires_grad_(true);
      leaves.push_back(own);
      adapters.Add(module.name, own);
    }
    parallel::SingleRank one;
    parallel::Communicator& tensor = group == nullptr ? one : *group;
    parallel::LocalAttention attention;
    const parallel::ForwardContext context{
        .attention = attention, .tensor = tensor, .world = tensor, .adapters = &adapters};
    const at::Tensor x = Random({3, 2, kIn}, 9).requires_grad_(true);
    const at::Tensor y = row.Forward(column.Forward(x, context).sin(), context);
    (y * y.detach().cos()).sum().backward();
    result.y = y.detach();
    result.x_gradient = x.grad();
    for (const parallel::LowRankFactors& own : leaves)
      result.gradients.push_back({.a = own.a.grad(), .b = own.b.grad()});
    return result;
  }
};

}  // namespace tessera
