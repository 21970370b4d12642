#include "tests/support/pretend_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>

namespace tessera {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

std::atomic<int64_t> calls = 0;

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr pointer = c10::GetCPUAllocator()->allocate(size);
    pointer.unsafe_set_device(kPretendDevice);
    return pointer;
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
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

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  OnHost(to).copy_(OnHost(from));
  return to;
}

// Any other operator: on the same memory, by the CPU's version.
void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++calls;
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

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  c10::SetAllocator(at::kPrivateUse1, &Memory());
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

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>)

}  // namespace tessera
