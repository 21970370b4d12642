#include "runtime/denoising/graphed_forward.h"

#include <algorithm>
#include <utility>

#include "base/macros/planted.h"

namespace tessera::runtime {
namespace {

std::vector<int> BlocksOf(const models::Transformer& transformer, const ForwardRows& rows) {
  std::vector<int> blocks;
  for (int block = 0; block < transformer.num_blocks(); ++block) {
    if (std::ranges::find(rows.skipped_blocks, block) == rows.skipped_blocks.end()) blocks.push_back(block);
  }
  blocks.push_back(transformer.num_blocks());
  return blocks;
}

// Copies the values that change between batches. Positions depend only on the size, and adapters are part of the key by
// which a graph is found.
ForwardRows WithOwnValues(ForwardRows rows) {
  for (at::Tensor* values : {&rows.text, &rows.text_bias}) {
    if (values->defined()) *values = values->clone(at::MemoryFormat::Contiguous);
  }
  return rows;
}

std::vector<int64_t> SizesOf(const at::Tensor& x) { return x.defined() ? x.sizes().vec() : std::vector<int64_t>(); }

}  // namespace

GraphedForward::GraphedForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
                               const parallel::Pipeline& pipeline, ForwardRows rows)
    : blocks_(BlocksOf(transformer, rows)),
      rows_(WithOwnValues(std::move(rows))),
      forward_(transformer, groups, pipeline, rows_),
      patches_(at::empty({rows_.patches.size(0), rows_.grid.count(), rows_.patches.size(2)}, rows_.patches.options())),
      modulations_(static_cast<size_t>(transformer.num_blocks()) + 1),
      runtime_(kernels::DeviceRuntimeOf(patches_.device().type())),
      agreeing_(groups.rows) {}

void GraphedForward::Rebind(const ForwardRows& rows) {
  if (base::Planted("graph_reads_the_text_before")) return;
  if (rows_.text.defined()) rows_.text.copy_(rows.text);
  if (rows_.text_bias.defined()) rows_.text_bias.copy_(rows.text_bias);
}

void GraphedForward::Fill(Modulations modulations, const at::Tensor& patches) {
  patches_.copy_(patches);
  if (graph_ != nullptr && base::Planted("graph_keeps_its_timestep")) return;
  std::vector<at::Tensor> to, from;
  for (const int block : blocks_) {
    at::Tensor& own = modulations_[static_cast<size_t>(block)];
    const std::vector<at::Tensor> of_rows = modulations(block);
    if (!own.defined()) {
      std::vector<int64_t> shape = of_rows.front().sizes().vec();
      shape[0] = static_cast<int64_t>(of_rows.size());
      own = at::empty(shape, of_rows.front().options());
    }
    for (size_t row = 0; row < of_rows.size(); ++row) {
      to.push_back(own.narrow(0, static_cast<int64_t>(row), 1));
      from.push_back(of_rows[row]);
    }
  }
  at::_foreach_copy_(to, from);
}

void GraphedForward::ComputeFilled(const parallel::StageOp& op) {
  const auto modulations = [this](int block) {
    return std::vector<at::Tensor>{modulations_[static_cast<size_t>(block)]};
  };
  forward_.Compute(op, modulations, patches_);
}

kernels::DeviceGraph* GraphedForward::CaptureHere(const parallel::StageOp& op) {
  if (!runtime_.begin_capture(device_index())) return nullptr;
  try {
    if (base::Planted("graph_of_an_operator_more")) patches_.tan_();
    ComputeFilled(op);
    return runtime_.end_capture(device_index());
  } catch (const c10::Error&) {  // if the device itself has failed, the operators will fail too
    if (kernels::DeviceGraph* part = runtime_.end_capture(device_index())) runtime_.destroy_graph(part);
    return nullptr;
  }
}

bool GraphedForward::Capture(const parallel::StageOp& op) {
  // Never tried again: a pass that cannot be captured now cannot be captured later.
  may_capture_ = false;
  graph_ = CaptureHere(op);
  if (agreeing_.size() > 1 && !base::Planted("ranks_capture_alone")) {
    // [ranks, 1]; -1 if that rank has no graph.
    const at::Tensor bytes =
        agreeing_.AllGather(at::full({1}, graph_ == nullptr ? -1 : runtime_.graph_bytes(*graph_), at::kLong),
                            std::vector<int64_t>(static_cast<size_t>(agreeing_.size()), 1));
    graph_bytes_ = bytes.max().item<int64_t>();
    if (graph_ != nullptr && bytes.min().item<int64_t>() < 0) runtime_.destroy_graph(std::exchange(graph_, nullptr));
  } else if (graph_ != nullptr) {
    graph_bytes_ = runtime_.graph_bytes(*graph_);
  }
  if (graph_ == nullptr) return false;
  output_ = forward_.output();
  result_ = at::empty_like(output_, at::MemoryFormat::Contiguous);
  if (base::Planted("graph_reads_freed_memory")) patches_ = patches_.clone();
  return true;
}

void GraphedForward::Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches) {
  Fill(modulations, patches);
  if (graph_ == nullptr && (!has_run_ || !may_capture_ || !Capture(op))) {
    ComputeFilled(op);
    // A graph has memory of its own, and these operators leave as much unused.
    if (!has_run_ && may_capture_ && !base::Planted("graph_beside_unused_memory")) {
      runtime_.release_cache(device_index());
    }
    has_run_ = true;
    return;
  }
  runtime_.launch(*graph_);
  // The next graph uses the same output memory.
  result_.copy_(output_);
  forward_.SetOutput(result_);
}

void GraphedForward::DropGraph() {
  may_capture_ = false;
  if (graph_ == nullptr) return;
  (void)runtime_.works(device_index());
  runtime_.destroy_graph(std::exchange(graph_, nullptr));
  output_ = result_ = at::Tensor();
}

std::shared_ptr<GraphedForward> StepGraphs::Find(size_t group, const parallel::Pipeline& pipeline,
                                                 const ForwardRows& rows) {
  const bool captures = !device_.is_cpu() && pipeline.stages() == 1 && pipeline.patches == 1 &&
                        groups_.tensor.capturable() && groups_.ring.capturable() && groups_.ulysses.capturable();
  if (!captures) return nullptr;
  Key key{.group = group,
          .grid = rows.grid,
          .patches = SizesOf(rows.patches),
          .text = SizesOf(rows.text),
          .text_bias = SizesOf(rows.text_bias),
          .references = rows.references,
          .skipped_blocks = rows.skipped_blocks,
          .adapters = rows.adapters};
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    entries_.front().forward->Rebind(rows);
  } else {
    entries_.push_front(
        {.key = std::move(key), .forward = std::make_shared<GraphedForward>(transformer_, groups_, pipeline, rows)});
  }
  return entries_.front().forward;
}

void StepGraphs::Trim() {
  size_t graphs = 0;
  int64_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->forward->graph_bytes();
    const bool fits = ++graphs <= options_.most_graphs && bytes <= options_.most_bytes;
    if (fits) {
      ++entry;
      continue;
    }
    bytes -= entry->forward->graph_bytes();
    entry->forward->DropGraph();
    // The entry in use is kept, without a graph, so that it is not captured again repeatedly.
    entry = entry == entries_.begin() ? std::next(entry) : entries_.erase(entry);
  }
}

size_t StepGraphs::count() const {
  return static_cast<size_t>(std::ranges::count_if(entries_, [](const Entry& e) { return e.forward->has_graph(); }));
}

}  // namespace tessera::runtime
