#include "parallel/functional.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <numeric>

#include "base/planted.h"

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
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.AllReduceSum(sum);
  return sum;
}

at::Tensor Rows(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, int rank) {
  return x.narrow(dim, std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0}), rows[rank]);
}

// [b, n, h, d]: rank r's share of the heads.
at::Tensor Heads(const at::Tensor& x, int r, int64_t heads) { return x.narrow(2, r * heads, heads); }

at::Tensor ExchangeToHeads(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  const int ranks = group.size();
  TORCH_CHECK(x.dim() == 4 && x.size(1) == rows[group.rank()], "rank ", group.rank(), " exchanges ", x.sizes(),
              " by rows ", rows);
  TORCH_CHECK(x.size(2) % ranks == 0, x.size(2), " heads are not divisible among ", ranks, " ranks");
  const int64_t heads = x.size(2) / ranks;
  const int64_t tokens = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  at::Tensor whole = at::empty({x.size(0), tokens, heads, x.size(3)}, x.options().requires_grad(false));
  std::vector<at::Tensor> send, receive;
  for (const int r : c10::irange(ranks)) {
    send.push_back(Heads(x, r, heads));
    receive.push_back(Rows(whole, 1, rows, r));
  }
  group.AllToAll(send, receive);
  return whole;
}

at::Tensor ExchangeToTokens(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  const int ranks = group.size();
  const int64_t heads = x.size(2);
  TORCH_CHECK(x.dim() == 4 && x.size(1) == std::accumulate(rows.begin(), rows.end(), int64_t{0}), "rank ", group.rank(),
              " exchanges ", x.sizes(), " by rows ", rows);
  at::Tensor local =
      at::empty({x.size(0), rows[group.rank()], heads * ranks, x.size(3)}, x.options().requires_grad(false));
  std::vector<at::Tensor> send, receive;
  for (const int r : c10::irange(ranks)) {
    send.push_back(Rows(x, 1, rows, r));
    receive.push_back(Heads(local, r, heads));
  }
  group.AllToAll(send, receive);
  return local;
}

// Hands `x` on by `step` ranks and returns what arrives, whose token dimension has `rows` rows.
at::Tensor ShiftBy(const at::Tensor& x, int step, int64_t rows, Communicator& group) {
  const int ranks = group.size();
  std::vector<int64_t> shape = x.sizes().vec();
  shape[shape.size() - 3] = rows;
  at::Tensor arrived = at::empty(shape, x.options().requires_grad(false));
  group.Shift(x, (group.rank() + ranks + step) % ranks, arrived, (group.rank() + ranks - step) % ranks);
  return arrived;
}

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

at::Tensor ScatterSum(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return group.ReduceScatterSum(v, rows, dim); },
      [&group, dim, rows = rows.vec()](const at::Tensor& g) { return group.AllGather(g, rows, dim); });
}

at::Tensor TakeShard(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  TORCH_CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == x.size(dim), "rows ", rows,
              " are not all of dimension ", dim, " of ", x.sizes());
  return Apply(
      x, [&](const at::Tensor& v) { return Rows(v, dim, rows, group.rank()); },
      [&group, dim, rows = rows.vec()](const at::Tensor& g) { return group.AllGather(g, rows, dim); });
}

at::Tensor TokensToHeads(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return ExchangeToHeads(v, rows, group); },
      [&group, rows = rows.vec()](const at::Tensor& g) { return ExchangeToTokens(g, rows, group); });
}

at::Tensor HeadsToTokens(const at::Tensor& x, at::IntArrayRef rows, Communicator& group) {
  if (group.size() == 1) return x;
  return Apply(
      x, [&](const at::Tensor& v) { return ExchangeToTokens(v, rows, group); },
      [&group, rows = rows.vec()](const at::Tensor& g) { return ExchangeToHeads(g, rows, group); });
}

at::Tensor RingShift(const at::Tensor& x, int owner, at::IntArrayRef rows, Communicator& group) {
  const int ranks = group.size();
  if (ranks == 1) return x;
  TORCH_CHECK(x.dim() >= 3 && x.size(-3) == rows[owner], "tokens of rank ", owner, " are ", x.sizes(), ", rows are ",
              rows);
  return Apply(
      x, [&](const at::Tensor& v) { return ShiftBy(v, +1, rows[(owner + ranks - 1) % ranks], group); },
      [&group, own = rows[owner]](const at::Tensor& g) { return ShiftBy(g, -1, own, group); });
}

}  // namespace tessera::parallel
