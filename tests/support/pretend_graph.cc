#include "tests/support/pretend_graph.h"

#include <memory>

#include "tests/support/pretend_device.h"

namespace tessera {
namespace {

thread_local std::unique_ptr<PretendGraph> current;

}  // namespace

PretendGraph* PretendGraph::Current() { return current.get(); }

bool PretendGraph::Begin() {
  current = std::make_unique<PretendGraph>();
  PretendMemory::Instance().BeginKeeping();
  return true;
}

PretendGraph* PretendGraph::End() noexcept {
  if (current == nullptr) return nullptr;
  std::unique_ptr<PretendGraph> graph = std::move(current);
  graph->kept_ = PretendMemory::Instance().EndKeeping();
  PretendMemory::Instance().Spoil(graph->kept_);  // captured work was not executed
  return graph->spoiled_ ? nullptr : graph.release();
}

void PretendGraph::Spoil() {
  if (current == nullptr) return;
  current->spoiled_ = true;
  TORCH_CHECK(false, "pretended error: operation not permitted when stream is capturing");
}

PretendGraph::~PretendGraph() { PretendMemory::Instance().Release(kept_); }

void PretendGraph::AddCall(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                           std::vector<std::vector<at::Tensor>> results) {
  calls_.push_back({.op = op, .arguments = std::move(arguments), .results = std::move(results)});
}

void PretendGraph::AddUse(const at::Tensor& x) {
  if (x.numel() > 0) used_.push_back(PretendMemory::Instance().Find(x.storage().data()));
}

void PretendGraph::Launch() {
  PretendMemory& memory = PretendMemory::Instance();
  for (const PretendBlock& block : used_) {
    TORCH_CHECK(memory.IsLive(block), "pretended error: a graph reads memory that was freed");
  }
  memory.Spoil(kept_);
  const c10::InferenceMode no_gradients;
  for (const Call& call : calls_) {
    if (!call.op) {
      call.work();
      continue;
    }
    DoLateWorkOfPretendDevice();
    torch::jit::Stack stack = call.arguments;
    call.op->callBoxed(stack);
    for (size_t i = 0; i < call.results.size(); ++i) {
      const std::vector<at::Tensor>& to = call.results[i];
      const c10::IValue& from = stack[i];
      for (size_t j = 0; j < to.size(); ++j) {
        if (to[j].defined()) to[j].copy_(from.isTensorList() ? from.toTensorVector()[j] : from.toTensor());
      }
    }
  }
}

int64_t PretendGraph::bytes() const { return PretendMemory::Instance().BytesOf(kept_); }

}  // namespace tessera
