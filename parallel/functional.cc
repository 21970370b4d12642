#include "parallel/functional.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <numeric>

#include "base/macros/planted.h"
#include "kernels/ops.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

struct Gradient final : torch::CustomClassHolder {
  TensorFunction of;
};

struct CollectiveFunction : torch::autograd::Function<CollectiveFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const TensorFunction& value,
                          const c10::intrusive_ptr<Gradient>& gradient) {
    context->saved_data["gradient"] = c10::IValue::make_capsule(gradient);
    const at::Tensor y = value(x);
    return y.is_same(x) ? x.view_as(x) : y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto gradient = c10::static_intrusive_pointer_cast<Gradient>(context->saved_data["gradient"].toCapsule());
    return {gradient->of(gradients[0]), Variable(), Variable()};
  }
};

template <typename Value, typename Backward>
at::Tensor Apply(const at::Tensor& x, Value value, Backward backward) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return value(x);
  const auto gradient = c10::make_intrusive<Gradient>();
  gradient->of = std::move(backward);
  return CollectiveFunction::apply(x, TensorFunction(std::move(value)), gradient);
}

at::Tensor Sum(const at::Tensor& x, Communicator& group) {
  const at::Tensor in = x.contiguous();
  const at::Tensor sum = at::empty(in.sizes(), in.options().requires_grad(false));
  group.Sum(in, sum);
  return sum;
}

at::Tensor Rows(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, int rank) {
  return x.narrow(dim, std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0}), rows[rank]);
}

int64_t SumOfRows(at::IntArrayRef rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// Returns the shape of x with its first `count` dimensions replaced.
std::vector<int64_t> WithLeading(const at::Tensor& x, int64_t count, std::vector<int64_t> leading) {
  leading.insert(leading.end(), x.sizes().begin() + count, x.sizes().end());
  return leading;
}

at::Tensor SendParts(const at::Tensor& parts, at::IntArrayRef rows, Communicator& group) {
  TORCH_CHECK(parts.dim() >= 2 && parts.size(0) == group.size() && parts.size(1) == rows[group.rank()], "rank ",
              group.rank(), " exchanges parts ", parts.sizes(), " by rows ", rows);
  const at::Tensor send = parts.contiguous();
  const at::Tensor whole = at::empty(WithLeading(parts, 2, {SumOfRows(rows)}), parts.options().requires_grad(false));
  group.AllToAll(send.unbind(0), RankParts(whole, rows, 0));
  return whole;
}

at::Tensor ReturnRows(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  TORCH_CHECK(x.dim() >= 1 && x.size(0) == SumOfRows(rows), "rank ", group.rank(), " exchanges ", x.sizes(),
              " by rows ", rows);
  const at::Tensor send = x.contiguous();
  const at::Tensor parts =
      at::empty(WithLeading(x, 1, {group.size(), rows[group.rank()]}), x.options().requires_grad(false));
  group.AllToAll(RankParts(send, rows, 0), parts.unbind(0));
  return parts;
}

// Returns the rows of each rank over all runs.
std::vector<int64_t> RankRows(const TokenRuns& runs, const Communicator& group) {
  std::vector<int64_t> rows(static_cast<size_t>(group.size()), 0);
  for (const std::vector<int64_t>& run : runs) {
    TORCH_CHECK(run.size() == rows.size(), "a run of ", run.size(), " parts over ", rows.size(), " ranks");
    for (size_t rank = 0; rank < rows.size(); ++rank) rows[rank] += run[rank];
  }
  return rows;
}

at::Tensor Gathered(const at::Tensor& x, const TokenRuns& runs, Communicator& group) {
  const at::Tensor by_rank = group.AllGather(x, RankRows(runs, group), 1);
  if (runs.size() == 1) return by_rank;
  std::vector<at::Tensor> parts(runs.size() * runs[0].size());  // run by run
  int64_t begin = 0;
  for (size_t rank = 0; rank < runs[0].size(); ++rank) {
    for (size_t run = 0; run < runs.size(); ++run) {
      parts[run * runs[0].size() + rank] = by_rank.narrow(1, begin, runs[run][rank]);
      begin += runs[run][rank];
    }
  }
  return at::cat(parts, 1);
}

at::Tensor Scattered(const at::Tensor& x, const TokenRuns& runs, Communicator& group) {
  const std::vector<int64_t> rows = RankRows(runs, group);
  if (runs.size() == 1) return group.ReduceScatterSum(x, rows, 1);
  std::vector<at::Tensor> parts(runs.size() * runs[0].size());  // rank by rank
  int64_t begin = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t rank = 0; rank < runs[run].size(); ++rank) {
      parts[rank * runs.size() + run] = x.narrow(1, begin, runs[run][rank]);
      begin += runs[run][rank];
    }
  }
  TORCH_CHECK(begin == x.size(1), "runs of ", begin, " tokens are not those of ", x.sizes());
  return group.ReduceScatterSum(at::cat(parts, 1), rows, 1);
}

// [b, tokens, features] → [rows, features].
at::Tensor AsMatrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

struct Runs final : torch::CustomClassHolder {
  TokenRuns of;
};

struct GatheredProductFunction : torch::autograd::Function<GatheredProductFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<Runs>& runs,
                          Communicator* group) {
    context->save_for_backward({x, weight});
    context->saved_data["runs"] = c10::IValue::make_capsule(runs);
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["has_bias"] = bias.has_value();
    return kernels::LinearProduct(Gathered(x, runs->of, *group), weight, bias);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &g = gradients[0];
    const auto runs = c10::static_intrusive_pointer_cast<Runs>(context->saved_data["runs"].toCapsule());
    Communicator& group = *reinterpret_cast<Communicator*>(context->saved_data["group"].toInt());
    variable_list of(5);
    if (context->needs_input_grad(1)) of[1] = at::mm(AsMatrix(g).t(), AsMatrix(Gathered(x, runs->of, group)));
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) of[2] = AsMatrix(g).sum(0);
    if (context->needs_input_grad(0)) of[0] = Scattered(at::matmul(g, weight), runs->of, group);
    return of;
  }
};

}  // namespace

at::Tensor CopyToGroup(const at::Tensor& x, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [](const at::Tensor& v) { return v; }, [&group](const at::Tensor& g) { return Sum(g, group); });
}

at::Tensor SumOverGroup(const at::Tensor& x, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&group](const at::Tensor& v) { return Sum(v, group); }, [](const at::Tensor& g) { return g; });
}

at::Tensor GatherDim(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return group.AllGather(v, rows, dim); },
      [&group, dim, rows = rows.vec()](const at::Tensor& g) {
        if (base::Planted("gradient_of_gather_not_summed")) return Rows(g, dim, rows, group.rank());
        return group.ReduceScatterSum(g, rows, dim);
      });
}

at::Tensor GatherTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return Gathered(v, runs, group); },
      [&group, runs](const at::Tensor& g) { return Scattered(g, runs, group); });
}

at::Tensor ScatterTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return Scattered(v, runs, group); },
      [&group, runs](const at::Tensor& g) { return Gathered(g, runs, group); });
}

at::Tensor GatheredProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const TokenRuns& runs, Communicator& group) {
  if (group.size() == 1) return kernels::LinearProduct(x, weight, bias);
  const auto held = c10::make_intrusive<Runs>();
  held->of = runs;
  return GatheredProductFunction::apply(x, weight, bias, held, &group);
}

at::Tensor TakeShard(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  TORCH_CHECK(SumOfRows(rows) == x.size(dim), "rows ", rows, " are not all of dimension ", dim, " of ", x.sizes());
  return Apply(
      x, [&](const at::Tensor& v) { return Rows(v, dim, rows, group.rank()); },
      [&group, dim, rows = rows.vec()](const at::Tensor& g) { return group.AllGather(g, rows, dim); });
}

at::Tensor PartsToRows(const at::Tensor& parts, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return parts[0];
  return Apply(
      parts, [&](const at::Tensor& v) { return SendParts(v, rows, group); },
      [&group, rows = rows.vec()](const at::Tensor& g) { return ReturnRows(g, rows, group); });
}

at::Tensor RowsToParts(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x.unsqueeze(0);
  return Apply(
      x, [&](const at::Tensor& v) { return ReturnRows(v, rows, group); },
      [&group, rows = rows.vec()](const at::Tensor& g) { return SendParts(g, rows, group); });
}

}  // namespace tessera::parallel
