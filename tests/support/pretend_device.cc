#include "tests/support/pretend_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>

namespace tessera {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

std::atomic<int64_t> calls = 0;
thread_local HostWaits host_waits;
std::atomic<bool> failed = false;
std::atomic<int64_t> live_bytes = 0;
thread_local int64_t most_bytes = std::numeric_limits<int64_t>::max();

void ThrowIfFailed() { TORCH_CHECK(!failed, "pretended error: an illegal memory access was encountered"); }

// A block's size lies before it.
constexpr size_t kBlockHeader = 64;
void FreeBlock(void* memory) {
  char* const block = static_cast<char*>(memory) - kBlockHeader;
  live_bytes -= *reinterpret_cast<int64_t*>(block);
  c10::GetCPUAllocator()->raw_deallocate(block);
}

// Memory of the host that the device reads and writes by itself.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* memory = c10::GetCPUAllocator()->raw_allocate(size);
    const std::lock_guard lock(Mutex());
    Blocks().insert(memory);
    return {memory, memory, &Free, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

  static bool Has(const void* memory) {
    const std::lock_guard lock(Mutex());
    return Blocks().contains(memory);
  }

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::set<const void*>& Blocks() {
    static auto* blocks = new std::set<const void*>;
    return *blocks;
  }
  static void Free(void* memory) {
    {
      const std::lock_guard lock(Mutex());
      Blocks().erase(memory);
    }
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
};

bool IsPinned(const at::Tensor& x) { return PinnedMemory::Has(x.storage().data()); }

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::Has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory memory;
    return &memory;
  }
};

// One device, one stream, and events that remember when they were recorded: operators end before they return.
class Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
 public:
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Device getDevice() const override { return kPretendDevice; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    ThrowIfFailed();
    if (*event == nullptr) *event = new Clock::time_point;
    *Time(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {
    ++host_waits.waits;
    ThrowIfFailed();
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*Time(to) - *Time(from)).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete Time(event); }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point* Time(void* event) { return static_cast<Clock::time_point*>(event); }
};

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    TORCH_CHECK_WITH(OutOfMemoryError, live_bytes + bytes <= most_bytes, "pretended device out of memory: ", bytes,
                     " bytes more than ", live_bytes.load());
    live_bytes += bytes;
    char* const block = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(kBlockHeader + size));
    *reinterpret_cast<int64_t*>(block) = bytes;
    return {block + kBlockHeader, block + kBlockHeader, &FreeBlock, kPretendDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeBlock; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

Allocator& Memory() {
  static Allocator allocator;
  return allocator;
}

// The memory of `x` as a tensor of the host. An empty one gets memory of its own, so that an operator can resize it.
at::Tensor OnHost(const at::Tensor& x) {
  if (!x.device().is_privateuseone()) return x;
  const at::TensorOptions options = at::TensorOptions(x.scalar_type()).device(at::kCPU);
  return x.numel() == 0 ? at::empty(x.sizes(), options) : at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

at::Tensor OnDevice(const at::Tensor& x) {
  at::Tensor copy = at::detail::empty_strided_generic(x.sizes(), x.strides(), &Memory(), kKeys, x.scalar_type());
  OnHost(copy).copy_(x);
  return copy;
}

at::Tensor Empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &Memory(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &Memory(), kKeys, dtype.value_or(at::kFloat));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  ThrowIfFailed();
  const bool from_host = !from.device().is_privateuseone(), to_host = !to.device().is_privateuseone();
  if ((from_host || to_host) && from.numel() > 0) {
    const bool pinned = IsPinned(from_host ? from : to);
    host_waits.waits += non_blocking && pinned ? 0 : 1;
    host_waits.pageable_copies += pinned ? 0 : 1;
  }
  OnHost(to).copy_(OnHost(from));
  return to;
}

// Any other operator: on the same memory, by the CPU's version.
void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++calls;
  ThrowIfFailed();
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size(), base = stack->size() - count;
  const std::vector<c10::IValue> arguments(stack->begin() + static_cast<int64_t>(base), stack->end());
  const auto to_host = [&](const at::Tensor& x) {
    // A number of the host is let in, as on a GPU.
    TORCH_CHECK(!x.defined() || x.device().is_privateuseone() || x.dim() == 0, schema.name(),
                " mixes a tensor of the host, of shape ", x.sizes(), ", with tensors of the device");
    return x.defined() ? OnHost(x) : x;
  };
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (value.isTensor()) {
      value = to_host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& x : value.toTensorVector()) list.push_back(to_host(x));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) {
        list.push_back(x.has_value() ? std::optional(to_host(*x)) : std::nullopt);
      }
      value = list;
    } else if (value.isDevice()) {
      value = at::Device(at::kCPU);
    }
  }
  const std::vector<c10::IValue> on_host(stack->begin() + static_cast<int64_t>(base), stack->end());
  op.callBoxed(stack);
  // What was written to lies in the device's memory already, unless it was resized.
  for (size_t i = 0; i < count; ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !arguments[i].isTensor()) continue;
    const at::Tensor &original = arguments[i].toTensor(), &written = on_host[i].toTensor();
    if (original.sizes() == written.sizes() || !original.device().is_privateuseone()) continue;
    original.unsafeGetTensorImpl()->set_storage_keep_dtype(OnDevice(written.contiguous()).storage());
    original.unsafeGetTensorImpl()->set_sizes_contiguous(written.sizes());
  }
  const size_t results = schema.returns().size();
  // A number, or a shape, that the host is given.
  if (std::ranges::any_of(schema.returns(),
                          [](const c10::Argument& r) {
                            return r.type()->isSubtypeOf(*c10::NumberType::get()) ||
                                   r.type()->kind() == c10::TypeKind::BoolType;
                          }) ||
      schema.name() == "aten::nonzero" || schema.name() == "aten::masked_select") {
    ++host_waits.waits;
  }
  for (size_t i = 0; i < results; ++i) {
    c10::IValue& value = (*stack)[stack->size() - results + i];
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (alias != nullptr) {
      for (size_t j = 0; j < count; ++j) {
        if (schema.arguments()[j].alias_info() != nullptr && *schema.arguments()[j].alias_info() == *alias) {
          TORCH_CHECK(alias->isWrite(), "the pretended device lacks the view ", schema.name());
          value = arguments[j];
        }
      }
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = OnDevice(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& x : value.toTensorVector()) list.push_back(OnDevice(x));
      value = list;
    }
  }
}

}  // namespace

int64_t PretendDeviceCalls() { return calls; }
HostWaits PretendDeviceWaits() { return host_waits; }
void FailPretendDevice(bool fails) { failed = fails; }
int64_t PretendDeviceBytes() { return live_bytes; }
void LimitPretendDevice(int64_t bytes) { most_bytes = bytes; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  c10::SetAllocator(at::kPrivateUse1, &Memory());
  c10::register_privateuse1_backend("pretend");
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  // LibTorch would ask other devices than its own for an operator of their making.
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&Run>());
  m.impl("empty.memory_format", Empty);
  m.impl("empty_strided", EmptyStrided);
  m.impl("_copy_from", CopyFrom);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("unfold", at::native::unfold);
  m.impl("view", [](const at::Tensor& x, at::IntArrayRef size) { return at::native::view(x, size); });
  m.impl("_reshape_alias", [](const at::Tensor& x, at::IntArrayRef size, at::IntArrayRef stride) {
    return at::native::_reshape_alias(x, size, stride);
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&Run>()); }

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace tessera
