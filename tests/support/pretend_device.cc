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
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "control/host/device_memory.h"
#include "kernels/device_runtimes.h"
#include "tests/support/pretend_graph.h"
#include "tests/support/pretend_memory.h"

namespace tessera {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

std::atomic<int64_t> calls = 0;
thread_local HostWaits host_waits;
thread_local int64_t host_copies = 0;
std::atomic<bool> failed = false;
std::atomic<int64_t> total_bytes = 0;
std::atomic<bool> rounds_by_shape = false;
thread_local int64_t most_bytes = std::numeric_limits<int64_t>::max();

void ThrowIfFailed() { TORCH_CHECK(!failed, "pretended error: an illegal memory access was encountered"); }

// Each thread's second stream, which copies to the device. Copies are executed as late as possible: when something
// waits for them. A GPU, however, may execute them as soon as the events for which the stream waits have passed, so a
// copy must not write to memory that the default stream has used since those events.
struct CopyStream {
  static constexpr c10::StreamId kId = 1;

  std::deque<std::pair<at::Tensor, at::Tensor>> under_way;  // from the host, to the device
  int64_t issued = 0;
  int64_t calls_waited_for = 0;

  void Issue(const at::Tensor& from, const at::Tensor& to);
  // Executes pending copies in order until `count` have been made in total.
  void MakeFirst(int64_t count);
};
thread_local CopyStream copy_stream;
thread_local c10::StreamId current_stream = 0;
std::atomic<bool> has_copy_stream = false;
std::atomic<LateWork*> late_work = nullptr;

// Records that an operator of the default stream uses `x`.
void Use(const at::Tensor& x) {
  LateWork* const late = late_work;
  if ((!has_copy_stream && late == nullptr) || !x.device().is_privateuseone() || x.numel() == 0) return;
  PretendMemory::Instance().Use(x.const_data_ptr(), calls);
  if (late == nullptr) return;
  int64_t last = 0;
  for (int64_t dim = 0; dim < x.dim(); ++dim) last += (x.size(dim) - 1) * x.stride(dim);
  late->OnUse(x.const_data_ptr(), (last + 1) * x.element_size());
}

// Host memory that the device can access directly.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const std::lock_guard lock(Mutex());
    const auto bytes = static_cast<int64_t>(size);
    TORCH_CHECK(Used() + bytes <= Most(), "pinned memory exhausted");
    void* memory = c10::GetCPUAllocator()->raw_allocate(size);
    Blocks()[memory] = bytes;
    Used() += bytes;
    return {memory, memory, &Free, at::Device(at::kCPU)};
  }
  static void Limit(int64_t bytes) {
    const std::lock_guard lock(Mutex());
    Most() = bytes;
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
  static std::map<const void*, int64_t>& Blocks() {
    static auto* blocks = new std::map<const void*, int64_t>;
    return *blocks;
  }
  static int64_t& Used() {
    static int64_t bytes = 0;
    return bytes;
  }
  static int64_t& Most() {
    static int64_t bytes = std::numeric_limits<int64_t>::max();
    return bytes;
  }
  static void Free(void* memory) {
    {
      const std::lock_guard lock(Mutex());
      const auto block = Blocks().find(memory);
      Used() -= block->second;
      Blocks().erase(block);
    }
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
};

bool IsPinned(const at::Tensor& x) { return PinnedMemory::Has(x.storage().data()); }

c10::Allocator* Pinned() {
  static PinnedMemory memory;
  return &memory;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::Has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return Pinned(); }
};

// Defines one device with a default stream, whose operators complete before they return, and a stream for copies.
class Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
 public:
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    has_copy_stream = true;
    return c10::Stream(c10::Stream::UNSAFE, device, CopyStream::kId);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(current_stream, stream.id()));
  }
  c10::Device getDevice() const override { return kPretendDevice; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    ThrowIfFailed();
    if (*event == nullptr) *event = new Event;
    const bool copies = stream.id() == CopyStream::kId;
    *Of(*event) = {.time = Clock::now(), .of_copies = copies, .place = copies ? copy_stream.issued : calls.load()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const bool copies = stream.id() == CopyStream::kId;
    if (copies == Of(event)->of_copies) return;
    if (copies) {
      copy_stream.calls_waited_for = std::max(copy_stream.calls_waited_for, Of(event)->place);
    } else {
      copy_stream.MakeFirst(Of(event)->place);
    }
  }
  bool queryEvent(void* event) const override { return !Of(event)->of_copies || copy_stream.under_way.empty(); }
  void synchronizeEvent(void* event) const override {
    ++host_waits.waits;
    ThrowIfFailed();
    if (Of(event)->of_copies) copy_stream.MakeFirst(Of(event)->place);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(Of(to)->time - Of(from)->time).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete Of(event); }

 private:
  using Clock = std::chrono::steady_clock;
  // The time of the recording, and its place: after how many copies of the thread, or operators of all threads.
  struct Event {
    Clock::time_point time;
    bool of_copies = false;
    int64_t place = 0;
  };
  static Event* Of(void* event) { return static_cast<Event*>(event); }
};

void Free(void* memory) {
  LateWork* const late = late_work;
  if (late == nullptr || !late->TakesOver(memory)) PretendMemory::Instance().Free(memory);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* memory = PretendMemory::Instance().Allocate(static_cast<int64_t>(size), most_bytes);
    return {memory, memory, &Free, kPretendDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

Allocator& Memory() {
  static Allocator allocator;
  return allocator;
}

// Returns the memory of `x` as a host tensor. An empty tensor gets separate memory, so that an operator can resize it.
at::Tensor OnHost(const at::Tensor& x) {
  if (!x.device().is_privateuseone()) return x;
  const at::TensorOptions options = at::TensorOptions(x.scalar_type()).device(at::kCPU);
  return x.numel() == 0 ? at::empty(x.sizes(), options) : at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

void CopyStream::Issue(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(PretendMemory::Instance().LastCall(to.const_data_ptr()) <= calls_waited_for,
              "a copy to the pretended device may overwrite what an operator is yet to read");
  under_way.emplace_back(from, to);
  ++issued;
}

void CopyStream::MakeFirst(int64_t count) {
  for (int64_t made = issued - static_cast<int64_t>(under_way.size()); made < count && !under_way.empty(); ++made) {
    OnHost(under_way.front().second).copy_(OnHost(under_way.front().first));
    under_way.pop_front();
  }
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

// Counts a wait of the host that would be necessary on a GPU. Captures do not allow it.
void CountWait() {
  ++host_waits.waits;
  PretendGraph::Spoil();
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  ThrowIfFailed();
  const bool from_host = !from.device().is_privateuseone(), to_host = !to.device().is_privateuseone();
  if ((from_host || to_host) && from.numel() > 0) {
    const bool pinned = IsPinned(from_host ? from : to);
    ++host_copies;
    host_waits.waits += non_blocking && pinned ? 0 : 1;
    host_waits.pageable_copies += pinned ? 0 : 1;
    PretendGraph::Spoil();
  }
  if (PretendGraph* graph = PretendGraph::Current()) {
    graph->AddUse(from);
    graph->AddUse(to);
    graph->AddCall(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""), {OnHost(to), OnHost(from), false},
                   {});
    return to;
  }
  if (current_stream == CopyStream::kId) {
    copy_stream.Issue(from, to);
    return to;
  }
  DoLateWorkOfPretendDevice();
  Use(from);
  Use(to);
  OnHost(to).copy_(OnHost(from));
  return to;
}

// Returns `value` with its tensors replaced by the results of `change`, and its device by the host.
c10::IValue Changed(const c10::IValue& value, c10::function_ref<at::Tensor(const at::Tensor&)> change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& x : value.toTensorVector()) list.push_back(change(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) {
      list.push_back(x.has_value() ? std::optional(change(*x)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) return at::Device(at::kCPU);
  return value;
}

bool ReturnsNumber(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(),
                             [](const c10::Argument& r) {
                               return r.type()->isSubtypeOf(*c10::NumberType::get()) ||
                                      r.type()->kind() == c10::TypeKind::BoolType;
                             }) ||
         schema.name() == "aten::nonzero" || schema.name() == "aten::masked_select";
}

// Changes the rounding of products of [rows, in] or [batch, rows, in] by their number of rows.
void RoundByShape(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  static const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
  if (!products.contains(schema.name())) return;
  const at::Tensor& result = stack.back().toTensor();
  const int64_t rows = result.numel() / std::max<int64_t>(result.size(-1), 1);
  result.mul_(1 + 1e-9 * static_cast<double>(rows % 1009));
}

// Runs any other operator with the CPU implementation on the same memory. During a capture the operator runs on copies
// of the tensors that it would write, only to obtain the shapes of its results.
void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++calls;
  ThrowIfFailed();
  const c10::FunctionSchema& schema = op.schema();
  // The host receives a number or a shape.
  if (ReturnsNumber(schema)) CountWait();
  PretendGraph* const graph = PretendGraph::Current();
  if (graph == nullptr) DoLateWorkOfPretendDevice();
  const size_t count = schema.arguments().size(), base = stack->size() - count;
  const std::vector<c10::IValue> arguments(stack->begin() + static_cast<int64_t>(base), stack->end());
  const auto to_host = [&](const at::Tensor& x) {
    // Host scalars are allowed, as on a GPU.
    TORCH_CHECK(!x.defined() || x.device().is_privateuseone() || x.dim() == 0, schema.name(),
                " mixes a tensor of the host, of shape ", x.sizes(), ", with tensors of the device");
    if (x.defined() && graph == nullptr) Use(x);
    if (!x.defined() || graph == nullptr) return x.defined() ? OnHost(x) : x;
    if (!x.device().is_privateuseone()) return x.clone();
    graph->AddUse(x);
    return OnHost(x);
  };
  std::vector<c10::IValue> on_host;
  for (const c10::IValue& value : arguments) on_host.push_back(Changed(value, to_host));
  const auto writes = [&](size_t argument) {
    const c10::AliasInfo* alias = schema.arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  };
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[base + i] = on_host[i];
    if (graph == nullptr || !writes(i)) continue;
    TORCH_CHECK(value.isTensor(), schema.name(), " writes a list, which the pretended device does not capture");
    value = value.toTensor().clone();
  }
  const std::vector<c10::IValue> given(stack->begin() + static_cast<int64_t>(base), stack->end());
  op.callBoxed(stack);
  if (rounds_by_shape) RoundByShape(schema, *stack);
  // Writes have gone to the device's memory already, unless the operator resized the tensor.
  for (size_t i = 0; i < count; ++i) {
    if (!writes(i) || !arguments[i].isTensor()) continue;
    const at::Tensor &original = arguments[i].toTensor(), &written = given[i].toTensor();
    if (original.sizes() == written.sizes() || !original.device().is_privateuseone()) continue;
    original.unsafeGetTensorImpl()->set_storage_keep_dtype(OnDevice(written.contiguous()).storage());
    original.unsafeGetTensorImpl()->set_sizes_contiguous(written.sizes());
    on_host[i] = OnHost(original);
  }
  const size_t returns = schema.returns().size();
  std::vector<std::vector<at::Tensor>> results(returns);  // views of the device's memory
  for (size_t i = 0; i < returns; ++i) {
    c10::IValue& value = (*stack)[stack->size() - returns + i];
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (alias != nullptr) {
      for (size_t j = 0; j < count; ++j) {
        if (schema.arguments()[j].alias_info() != nullptr && *schema.arguments()[j].alias_info() == *alias) {
          TORCH_CHECK(alias->isWrite(), "the pretended device lacks the view ", schema.name());
          value = arguments[j];
        }
      }
      continue;
    }
    value = Changed(value, [&](const at::Tensor& x) {
      const at::Tensor there = x.defined() ? OnDevice(x) : x;
      if (graph != nullptr) results[i].push_back(there.defined() ? OnHost(there) : there);
      return there;
    });
  }
  if (graph != nullptr) graph->AddCall(op, std::move(on_host), std::move(results));
}

// Work completes before it returns, so a mark is reached at once.
struct PretendMark : kernels::DeviceMark {
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

std::chrono::steady_clock::time_point TimeOf(const kernels::DeviceMark& mark) {
  return static_cast<const PretendMark&>(mark).time;
}

kernels::DeviceMark* RecordMark(int) {
  ThrowIfFailed();
  return new PretendMark;
}

bool ReadMemory(int, kernels::DeviceMemory& memory) noexcept {
  if (total_bytes == 0) return false;
  const int64_t used = PretendMemory::Instance().bytes(), cached = PretendMemory::Instance().cached();
  memory = {
      .total = total_bytes, .free = std::max<int64_t>(0, total_bytes - used - cached), .used = used, .cached = cached};
  return true;
}

constexpr kernels::DeviceRuntime kRuntime = {
    .find =
        [](const std::string&, std::string& problem) noexcept {
          problem = "the pretended device has no such name";
          return -1;
        },
    .open = [](int) noexcept { return std::string(); },
    .identify =
        [](int, kernels::DeviceIdentity& identity) noexcept {
          identity.device = "pretended";
          return std::string();
        },
    .read_memory = ReadMemory,
    .release_cache = [](int) { PretendMemory::Instance().GiveBack(); },
    .limit_memory = [](int, int64_t bytes) { most_bytes = bytes; },
    .works =
        [](int) noexcept {
          ++host_waits.waits;
          return !failed;
        },
    .record_mark = RecordMark,
    .is_reached = [](const kernels::DeviceMark&) { return true; },
    .wait =
        [](const kernels::DeviceMark&) {
          CountWait();
          ThrowIfFailed();
        },
    .seconds_between =
        [](const kernels::DeviceMark& from, const kernels::DeviceMark& to) {
          return std::chrono::duration<double>(TimeOf(to) - TimeOf(from)).count();
        },
    .destroy_mark = [](kernels::DeviceMark* mark) noexcept { delete static_cast<PretendMark*>(mark); },
    .pinned_memory = Pinned,
    .begin_capture = [](int) { return PretendGraph::Begin(); },
    .end_capture = [](int) noexcept -> kernels::DeviceGraph* { return PretendGraph::End(); },
    .graph_bytes =
        [](const kernels::DeviceGraph& graph) noexcept { return static_cast<const PretendGraph&>(graph).bytes(); },
    .launch =
        [](kernels::DeviceGraph& graph) {
          ThrowIfFailed();
          static_cast<PretendGraph&>(graph).Launch();
        },
    .destroy_graph = [](kernels::DeviceGraph* graph) noexcept { delete static_cast<PretendGraph*>(graph); },
    .is_capturing = [](int) noexcept { return PretendGraph::Current() != nullptr; },
    .card = [](int) noexcept { return std::string(); },
};

}  // namespace

int64_t PretendDeviceCalls() { return calls; }
HostWaits PretendDeviceWaits() { return host_waits; }
void SizePretendDevice(int64_t bytes) { total_bytes = bytes; }
PretendCopies PretendDeviceCopies() {
  return {.issued = copy_stream.issued, .under_way = static_cast<int64_t>(copy_stream.under_way.size())};
}
int64_t PretendHostCopies() { return host_copies; }
void FailPretendDevice(bool fails) { failed = fails; }
void RoundByShapeOnPretendDevice(bool depends) { rounds_by_shape = depends; }
int64_t PretendDeviceBytes() { return PretendMemory::Instance().bytes(); }
void LimitPretendDevice(int64_t bytes) { most_bytes = bytes; }
void LimitPretendPinnedMemory(int64_t bytes) { PinnedMemory::Limit(bytes); }
void SetLateWorkOnPretendDevice(LateWork* work) { late_work = work; }
void DoLateWorkOfPretendDevice() {
  if (LateWork* const late = late_work) late->BeforeOperator();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  c10::SetAllocator(at::kPrivateUse1, &Memory());
  kernels::SetDeviceRuntime(at::kPrivateUse1, kRuntime);
  c10::register_privateuse1_backend("pretend");
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  // Without this, LibTorch would require a backend-specific operator of every device but its own.
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
