#include "models/loading/param_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/ops.h"
#include "models/loading/deferred_weight.h"
#include "models/loading/waiting_memory.h"

namespace tessera::models {
namespace {

// "attn.to_q.weight" → "attn.to_q".
std::string ModuleName(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

}  // namespace

std::vector<ChannelRange> TensorShard::ranges(int64_t count, const std::vector<int64_t>& parts) const {
  std::vector<ChannelRange> ranges;
  int64_t first = 0;
  for (const int64_t part : parts.empty() ? std::vector{count} : parts) {
    ranges.push_back({.begin = first + begin(part), .count = end(part) - begin(part)});
    first += part;
  }
  return ranges;
}

int64_t TensorShard::count(int64_t count, const std::vector<int64_t>& parts) const {
  int64_t sum = 0;
  for (const ChannelRange& range : ranges(count, parts)) sum += range.count;
  return sum;
}

std::vector<int64_t> ParamTable::LocalShape(const ParamSpec& spec) const {
  std::vector<int64_t> shape = spec.shape;
  if (spec.last_frame) shape.erase(shape.begin() + 2);
  if (spec.role == LinearRole::kColumn) shape[0] = shard_.count(shape[0], spec.parts);
  if (spec.role == LinearRole::kRow) shape[1] = shard_.count(shape[1], spec.parts);
  return shape;
}

void ParamTable::EnterBlock(int64_t index) {
  block_ = index;
  elsewhere_ = index < blocks_.begin || index >= blocks_.end;
  waits_ = HasOwnMemory(options_.device()) && !elsewhere_ && std::ranges::find(waiting_, index) != waiting_.end();
}

void ParamTable::LeaveBlock() {
  block_ = Param::kNoBlock;
  elsewhere_ = waits_ = false;
}

ParamTable::Home ParamTable::HomeOf(const ParamSpec& spec, bool offloaded) const {
  if (offloaded) return Home::kHost;
  const bool waits = (parked_ && !elsewhere_) || (waits_ && (conditioning_waits_ || spec.partial.sequence));
  return waits ? Home::kWaits : Home::kDevice;
}

ParamTable::Allocation ParamTable::Allocate(at::IntArrayRef shape, at::ScalarType dtype, Home home) {
  const at::TensorOptions options = Options().dtype(dtype);
  if (memory_ == nullptr && home != Home::kDevice) memory_ = std::make_shared<WaitingMemory>();
  if (home == Home::kHost) {
    return {.tensor = pinned_ ? memory_->Allocate(shape, dtype) : at::empty(shape, options.device(at::kCPU)),
            .waiting = {}};
  }
  if (home == Home::kDevice && !is_brought_) return {.tensor = at::empty(shape, options), .waiting = {}};
  Allocation allocation{.tensor = at::empty({0}, options), .waiting = {}};
  if (home == Home::kWaits) allocation.waiting = memory_->Allocate(shape, dtype);
  allocation.tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return allocation;
}

at::Tensor ParamTable::Add(ParamSpec spec) {
  std::vector<int64_t> shape = LocalShape(spec);
  const Allocation allocation = Allocate(shape, dtype(), HomeOf(spec));
  List({.spec = std::move(spec),
        .storage = allocation.tensor,
        .shape = std::move(shape),
        .waiting = allocation.waiting});
  return allocation.tensor;
}

void ParamTable::List(Param param) {
  if (elsewhere_) {
    for (std::string& alias : param.spec.aliases) ignored_.push_back(std::move(alias));
    ignored_.push_back(std::move(param.spec.name));
    return;
  }
  param.block = block_;
  params_.push_back(std::move(param));
}

at::Tensor ParamTable::AddPacked(std::vector<ParamSpec> specs) { return Pack(std::move(specs), std::nullopt).values; }

bool ParamTable::Waits(const std::vector<ParamSpec>& specs) const {
  if (elsewhere_ || !HasOwnMemory(options_.device())) return false;
  if (offloaded_ == Offloaded::kAll) return true;
  const auto is_modulation = [](const ParamSpec& spec) { return IsModulation(spec.name); };
  return offloaded_ == Offloaded::kModulations && std::ranges::all_of(specs, is_modulation);
}

WeightRows ParamTable::Pack(std::vector<ParamSpec> specs, const std::optional<QuantForm>& form, bool offloaded) {
  std::vector<int64_t> packed = LocalShape(specs.at(0));
  packed[0] = 0;
  for (const ParamSpec& spec : specs) packed[0] += LocalShape(spec)[0];
  const int64_t in = packed.size() < 2 ? 1 : packed[1];
  WeightRows rows{.form = form, .in = in};
  const Home home = HomeOf(specs.front(), offloaded);
  Allocation values, scales;
  if (form) {
    values = Allocate({packed[0], kernels::RowBytes(form->type, in)}, at::kByte, home);
    if (const int64_t count = form->scales_per_row(in); count > 0) {
      scales = Allocate({packed[0], count}, at::kFloat, home);
    }
    if (!form->table.empty()) rows.table = at::tensor(form->table, at::kFloat).to(Options().device());
  } else {
    values = Allocate(packed, dtype(), home);
  }
  rows.values = values.tensor;
  rows.scales = scales.tensor;
  int64_t offset = 0;
  for (ParamSpec& spec : specs) {
    std::vector<int64_t> shape = LocalShape(spec);
    const int64_t count = shape[0];
    List({.spec = std::move(spec),
          .storage = values.tensor,
          .offset = offset,
          .shape = std::move(shape),
          .form = form,
          .scales = scales.tensor,
          .waiting = values.waiting,
          .waiting_scales = scales.waiting});
    offset += count;
  }
  return rows;
}

std::shared_ptr<ProductWeight> ParamTable::AddProduct(std::vector<ParamSpec> specs) {
  for (const ParamSpec& spec : specs) {
    ProductSpec product{.name = ModuleName(spec.name),
                        .out = spec.shape[0],
                        .in = spec.shape[1],
                        .role = spec.role,
                        .parts = spec.parts,
                        .elsewhere = elsewhere_};
    for (const std::string& alias : spec.aliases) product.aliases.push_back(ModuleName(alias));
    product_specs_.push_back(std::move(product));
  }
  const bool waits = Waits(specs);
  const bool quantizes_input = quantizes_inputs_ && block_ != Param::kNoBlock && specs.front().partial.sequence;
  auto product = std::make_shared<ProductWeight>();
  std::vector<std::optional<QuantForm>> forms(specs.size());
  if (form_of_) std::ranges::transform(specs, forms.begin(), form_of_);
  if (std::ranges::none_of(forms, [](const auto& form) { return form.has_value(); })) {
    product->values = Pack(std::move(specs), std::nullopt, waits).values;
  } else {
    for (size_t first = 0, last = 0; first < specs.size(); first = last) {
      while (last < specs.size() && forms[last] == forms[first]) ++last;
      product->rows.push_back(
          Pack({specs.begin() + static_cast<std::ptrdiff_t>(first), specs.begin() + static_cast<std::ptrdiff_t>(last)},
               forms[first], waits));
      WeightRows& rows = product->rows.back();
      rows.quantizes_input = quantizes_input && rows.form && rows.form->type == kernels::QuantType::kF8E4M3;
    }
  }
  if (!elsewhere_ && !waits) products_.push_back(product);
  return product;
}

WeightRows ParamTable::AddLookedUp(ParamSpec spec) {
  spec.is_looked_up = true;
  const std::optional<QuantForm> form = form_of_ ? form_of_(spec) : std::nullopt;
  return Pack({std::move(spec)}, form);
}

std::shared_ptr<at::Tensor> ParamTable::AddConvolution(ParamSpec spec) {
  spec.last_frame = spec.shape.size() == 5;
  auto weight = std::make_shared<at::Tensor>(Add(std::move(spec)));
  if (!elsewhere_) convolutions_.push_back(weight);
  return weight;
}

void ParamTable::Unlist(const at::Tensor& storage) {
  std::erase_if(params_, [&](const Param& param) { return param.storage.is_same(storage); });
}

void ParamTable::ReorderWaiting(Param& param) {
  const at::Tensor reordered = param.waiting.contiguous(at::MemoryFormat::ChannelsLast);
  if (reordered.is_same(param.waiting)) return;
  param.waiting = param.waiting.as_strided(reordered.sizes(), reordered.strides());
  param.waiting.copy_(reordered);
  param.storage.unsafeGetTensorImpl()->set_sizes_and_strides(reordered.sizes(), reordered.strides());
}

void ParamTable::PackForInference() {
  const auto pack = [&](at::Tensor& values) {
    at::Tensor packed = kernels::PackWeight(values);
    if (packed.is_same(values)) return;
    Unlist(values);
    values = std::move(packed);
  };
  for (const std::shared_ptr<ProductWeight>& product : products_) {
    if (product->values.defined()) pack(product->values);
    for (WeightRows& rows : product->rows) {
      if (!rows.form && rows.values.defined()) pack(rows.values);
    }
  }
  for (const std::shared_ptr<at::Tensor>& weight : convolutions_) {
    if (weight->is_cpu()) continue;
    const auto param = std::ranges::find_if(params_, [&](const Param& each) { return each.storage.is_same(*weight); });
    if (param != params_.end() && param->waiting.defined()) {
      ReorderWaiting(*param);
      continue;
    }
    at::Tensor packed = weight->contiguous(at::MemoryFormat::ChannelsLast);
    if (packed.is_same(*weight)) continue;
    Unlist(*weight);
    *weight = std::move(packed);
  }
}

const at::Tensor& WeightRows::Values() const { return deferred == nullptr ? values : deferred->Values(); }

const at::Tensor& ProductWeight::Values() const { return deferred == nullptr ? values : deferred->Values(); }

std::shared_ptr<DeferredWeight> ParamTable::Defer(at::Tensor& values, const ReadParams& read,
                                                  std::vector<Param>& taken) {
  std::vector<Param> params;
  std::ranges::copy_if(params_, std::back_inserter(params),
                       [&](const Param& param) { return param.storage.is_same(values); });
  Unlist(values);
  for (Param& param : params) param.storage = at::Tensor();
  taken.insert(taken.end(), params.begin(), params.end());
  const bool is_plain = !params.front().form.has_value();
  const auto make = [read, params, is_plain, shape = values.sizes().vec(), options = values.options()] {
    const at::Tensor storage = at::empty(shape, options);
    std::vector<Param> stored = params;
    for (Param& param : stored) param.storage = storage;
    read(stored);
    return is_plain ? kernels::PackWeight(storage) : storage;
  };
  values = at::Tensor();
  return std::make_shared<DeferredWeight>(make);
}

std::vector<Param> ParamTable::DeferProducts(const ReadParams& read) {
  std::vector<Param> taken;
  for (const std::shared_ptr<ProductWeight>& product : products_) {
    if (product->values.defined() && product->values.is_cpu()) {
      product->deferred = Defer(product->values, read, taken);
    }
    for (WeightRows& rows : product->rows) {
      if (rows.values.is_cpu()) rows.deferred = Defer(rows.values, read, taken);
    }
  }
  return taken;
}

void ParamTable::RequireGradients() {
  for (Param& param : params_) {
    if (!param.spec.buffer && !param.form) param.storage.requires_grad_(true);
  }
}

int64_t ParamTable::bytes() const {
  int64_t total = 0;
  for (const Param& param : params_) {
    total += static_cast<int64_t>(param.LoadedValue().nbytes());
    if (param.scales.defined()) total += static_cast<int64_t>(param.LoadedScales().nbytes());
  }
  return total;
}

}  // namespace tessera::models
