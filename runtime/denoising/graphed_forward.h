// GraphedForward runs passes over rows of one shape as a graph that the device repeats as a whole, without receiving
// each operator again (CUDA graphs). The inputs of the graph are at fixed addresses, and each step fills them.
//
// Among ranks that compute the same rows, either all have a graph of them or none has, because NCCL requires a call to
// be captured on all ranks or on none. The ranks agree once per graph, after its capture, and drop it based on the same
// numbers.
//
// A graph never changes an image. It contains exactly the operators of MeshForward over the same numbers; if it cannot
// be captured, the operators are issued one by one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "kernels/device_runtimes.h"
#include "runtime/denoising/mesh_forward.h"

namespace tessera::runtime {

// The rows of one shape on one rank. Holds copies of all their values that differ between batches. Used by one thread.
class GraphedForward {
 public:
  GraphedForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
                 const parallel::Pipeline& pipeline, ForwardRows rows);
  ~GraphedForward() { DropGraph(); }
  GraphedForward(const GraphedForward&) = delete;
  GraphedForward& operator=(const GraphedForward&) = delete;

  // Replaces the rows by others of the same shape.
  void Rebind(const ForwardRows& rows);

  // Like MeshForward::Compute, for an operation over the whole image. The first call issues its operators, which also
  // makes the device load and select what it needs for them; the second call captures them, and later calls launch the
  // graph.
  void Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches);

  MeshForward& forward() { return forward_; }
  // Device memory of the graph, on the rank where it needs the most; 0 without a graph.
  int64_t graph_bytes() const { return graph_ == nullptr ? 0 : graph_bytes_; }
  bool has_graph() const { return graph_ != nullptr; }
  // Drops the graph after the device has completed its work. From then on operators are issued one by one.
  void DropGraph();

 private:
  // Fills the inputs of the next pass.
  void Fill(Modulations modulations, const at::Tensor& patches);
  // Runs the pass over the filled inputs.
  void ComputeFilled(const parallel::StageOp& op);
  // Captures the pass as a graph without running it. Returns false if one of the ranks cannot capture it.
  bool Capture(const parallel::StageOp& op);
  // Returns null if this rank cannot capture the pass.
  kernels::DeviceGraph* CaptureHere(const parallel::StageOp& op);
  int device_index() const { return patches_.device().has_index() ? patches_.device().index() : 0; }

  const std::vector<int> blocks_;  // the blocks of a pass, followed by the head's number
  const ForwardRows rows_;
  MeshForward forward_;
  at::Tensor patches_;
  std::vector<at::Tensor> modulations_;  // [rows, …] by block; undefined before the first pass
  const kernels::DeviceRuntime& runtime_;
  parallel::Communicator& agreeing_;  // the ranks that compute the same rows
  kernels::DeviceGraph* graph_ = nullptr;
  int64_t graph_bytes_ = 0;
  at::Tensor output_;  // the graph's output, in memory that it shares with other graphs
  at::Tensor result_;  // the copy of the output
  bool has_run_ = false;
  bool may_capture_ = true;
};

struct StepGraphsOptions {
  size_t most_graphs = 32;
  int64_t most_bytes = int64_t{2} << 30;  // of device memory that all graphs use
};

// The graphs of a model's passes by the properties that they depend on, the most recently used first. Used by one
// thread.
class StepGraphs {
 public:
  // The arguments outlive this object.
  StepGraphs(const models::Transformer& transformer, const parallel::RankGroups& groups, at::Device device,
             StepGraphsOptions options)
      : transformer_(transformer), groups_(groups), device_(device), options_(options) {}

  // Returns the forward for group number `group` of a batch's rows, bound to their values. Null if the passes cannot
  // have a graph: a collective in them waits for other ranks on the host, or the image goes in patches or through
  // stages.
  std::shared_ptr<GraphedForward> Find(size_t group, const parallel::Pipeline& pipeline, const ForwardRows& rows);

  // Drops the least recently used graphs that exceed the bounds.
  void Trim();

  size_t count() const;

 private:
  // The properties that determine which operators a pass has, and their shapes.
  struct Key {
    size_t group = 0;  // two groups of one batch never share the inputs that a step fills
    models::TokenGrid grid;
    std::vector<int64_t> patches, text, text_bias;  // sizes; empty if undefined
    std::vector<models::TokenGrid> references;
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
