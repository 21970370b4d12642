#include "runtime/group/heartbeat.h"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <memory>

namespace tessera::runtime {
namespace {

// LibTorch's callbacks are plain functions, so the counter cannot be passed to them.
std::atomic<std::atomic<uint64_t>*> counted = nullptr;

std::unique_ptr<at::ObserverContext> Beat(const at::RecordFunction&) {
  counted.load(std::memory_order_relaxed)->fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

void BeatWithEveryOperator(std::atomic<uint64_t>& beats) {
  counted = &beats;
  at::addGlobalCallback(at::RecordFunctionCallback(&Beat).scopes({at::RecordScope::FUNCTION}));
}

void SignOfLife() { at::zeros({1}); }

}  // namespace tessera::runtime
