// Passes over rows of one shape that a device does again as a whole, without being told each operator anew (CUDA
// graphs): what they read lies at addresses that stay, and each step fills these.
//
// Ranks that compute the same rows have a graph of them or none does: NCCL wants a call captured on all ranks or on
// none. They agree once for each graph, when it was captured, and by the same numbers they drop it.
//
// A graph never decides what an image is. It holds the very operators of MeshForward over the same numbers, and where
// it cannot be made these are issued one by one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "kernels/device_runtimes.h"
#include "runtime/denoising/mesh_forward.h"

namespace tessera::runtime {

// Rows of one shape on one rank; it has copies of all their values that differ from one batch to the next. Used by one
// thread.
class GraphedForward {
 public:
  GraphedForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
                 const parallel::Pipeline& pipeline, ForwardRows rows);
  ~GraphedForward() { DropGraph(); }
  GraphedForward(const GraphedForward&) = delete;
  GraphedForward& operator=(const GraphedForward&) = delete;

  // Other rows of the same shape take the place of those before.
  void Rebind(const ForwardRows& rows);

  // As that of MeshForward, of an operation over the whole image. The first call issues its operators, which also loads
  // and chooses what the device needs for them; the second one captures them, and later ones launch the graph.
  void Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches);

  MeshForward& forward() { return forward_; }
  // Of the device's memory, that the graph keeps on the rank where it keeps most; 0 without one.
  int64_t graph_bytes() const { return graph_ == nullptr ? 0 : graph_bytes_; }
  bool has_graph() const { return graph_ != nullptr; }
  // Gives it up, after the device has done what it was told; operators are issued one by one from here on.
  void DropGraph();

 private:
  // What the next pass reads.
  void Fill(Modulations modulations, const at::Tensor& patches);
  // The pass over that.
  void ComputeFilled(const parallel::StageOp& op);
  // Keeps it as a graph, of which nothing is done yet; false: there can be none on one of the ranks.
  bool Capture(const parallel::StageOp& op);
  // Null where this rank cannot.
  kernels::DeviceGraph* CaptureHere(const parallel::StageOp& op);
  int device_index() const { return patches_.device().has_index() ? patches_.device().index() : 0; }

  const std::vector<int> blocks_;  // that a pass runs, and behind them the head's number
  const ForwardRows rows_;
  MeshForward forward_;
  at::Tensor patches_;
  std::vector<at::Tensor> modulations_;  // [rows, …] by block; undefined before the first pass
  const kernels::DeviceRuntime& runtime_;
  parallel::Communicator& agreeing_;  // the ranks that compute the same rows
  kernels::DeviceGraph* graph_ = nullptr;
  int64_t graph_bytes_ = 0;
  at::Tensor output_;  // of the graph, in memory that it shares with others
  at::Tensor result_;  // that it is copied to
  bool has_run_ = false;
  bool may_capture_ = true;
};

struct StepGraphsOptions {
  size_t most_graphs = 32;
  int64_t most_bytes = int64_t{2} << 30;  // of the device's memory that graphs keep
};

// The graphs of a model's passes by what these depend on, the last used first. Used by one thread.
class StepGraphs {
 public:
  // All that it is given outlives it.
  StepGraphs(const models::Transformer& transformer, const parallel::RankGroups& groups, at::Device device,
             StepGraphsOptions options)
      : transformer_(transformer), groups_(groups), device_(device), options_(options) {}

  // For group number `group` of a batch's rows, whose values it has from here on; null where their passes can have no
  // graph: a collective within them waits for other ranks on the host, or the image goes in patches or through stages.
  std::shared_ptr<GraphedForward> Find(size_t group, const parallel::Pipeline& pipeline, const ForwardRows& rows);

  // Gives up what is beyond the bounds, the least recently used first.
  void Trim();

  size_t count() const;

 private:
  // What decides which operators a pass has, and over which shapes.
  struct Key {
    size_t group = 0;  // two groups of one batch never share what a step fills
    models::TokenGrid grid;
    std::vector<int64_t> patches, text, text_bias;  // sizes; none: undefined
    std::vector<int> skipped_blocks;
    models::SharedAdapters adapters;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::shared_ptr<GraphedForward> forward;
  };

  const models::Transformer& transformer_;
  const parallel::RankGroups& groups_;
  const at::Device device_;
  const StepGraphsOptions options_;
  std::list<Entry> entries_;
};

}  // namespace tessera::runtime
