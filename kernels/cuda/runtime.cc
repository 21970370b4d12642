#include "kernels/cuda/runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/macros/planted.h"
#include "kernels/cuda/nccl.h"

namespace tessera::kernels {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct CudaMark : DeviceMark {
  cudaEvent_t event = nullptr;
  int device = 0;
};

// Returns the mark's event and makes the event's device current for the calling thread. A thread whose first call is
// for another device would allocate memory for a context there.
cudaEvent_t EventOf(const DeviceMark& mark) {
  const auto& cuda = static_cast<const CudaMark&>(mark);
  if (base::Planted("mark_asked_about_on_any_device")) return cuda.event;
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(cuda.device));
  return cuda.event;
}

// Memory that graphs use internally. One launch ends before the next begins, so all graphs can share it. LibTorch
// requires a new pool once all graphs that shared the old one have been destroyed.
struct GraphPool {
  const c10::MempoolId_t id = at::cuda::graph_pool_handle();

  static std::shared_ptr<const GraphPool> OfAll() {
    static std::mutex mutex;
    static std::weak_ptr<const GraphPool> shared;
    const std::lock_guard lock(mutex);
    std::shared_ptr<const GraphPool> pool = shared.lock();
    if (pool == nullptr) shared = pool = std::make_shared<const GraphPool>();
    return pool;
  }
};

struct CudaGraph : DeviceGraph {
  std::shared_ptr<const GraphPool> pool = GraphPool::OfAll();
  at::cuda::CUDAGraph graph;
  int64_t reserved = 0;  // reserved bytes of the device before the capture; then the bytes added
};

// At most one; the thread that began the capture ends it.
thread_local std::unique_ptr<CudaGraph> captured;

// Logs the failure; steps continue without the graph.
void SayThatCaptureFailed(const std::exception& error) {
  const std::string text = error.what();
  std::fprintf(stderr, "a CUDA graph could not be made, operators are issued one by one: %s\n",
               text.substr(0, text.find('\n')).c_str());
}

// LibTorch ends its allocators' pools only after a successful capture. Until then it treats every allocation as part of
// the capture (pytorch/pytorch#180395).
void EndPoolsOfFailedCapture(int device, c10::MempoolId_t pool) noexcept {
  if (base::Planted("failed_capture_keeps_its_pools")) return;
  const auto attempt = [](const auto& end) {
    try {
      end();
    } catch (const std::exception&) {  // this one had ended
      (void)cudaGetLastError();
    }
  };
  const auto index = static_cast<c10::DeviceIndex>(device);
  at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
  attempt([&] { allocator::endAllocateToPool(index, pool); });
  attempt([&] { host->end_allocate_to_pool(pool); });
  attempt([&] { allocator::releasePool(index, pool); });
  attempt([&] { host->release_pool(pool); });
}

// LibTorch's page-locked memory. When a block is freed, on any thread, LibTorch records an event in each stream that
// used it. In a stream under capture that event would belong to the graph, and every later query of it would be an
// error. Blocks that are freed during a capture are therefore kept until its end.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& Get() {
    static PinnedMemory memory;
    return memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = memory_->allocate(bytes);
    delete_ = block.get_deleter();  // always the same
    void* const data = block.get();
    return {data, block.release_context(), &Return, block.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  void BeginCapture() {
    const std::lock_guard lock(mutex_);
    ++captures_;
  }
  void EndCapture() {
    std::vector<void*> blocks;
    {
      const std::lock_guard lock(mutex_);
      if (--captures_ == 0) blocks.swap(waiting_);
    }
    for (void* block : blocks) Return(block);
  }

 private:
  static void Return(void* block) {
    PinnedMemory& memory = Get();
    // The mutex is held while the event is recorded, so that no capture begins in between.
    const std::lock_guard lock(memory.mutex_);
    if (memory.captures_ > 0) {
      memory.waiting_.push_back(block);
    } else {
      memory.delete_(block);
    }
  }

  c10::Allocator* const memory_ = at::getHostAllocator(at::kCUDA);
  std::atomic<c10::DeleterFnPtr> delete_ = nullptr;
  std::mutex mutex_;
  int captures_ = 0;            // in progress
  std::vector<void*> waiting_;  // blocks that were freed during a capture
};

int64_t ReservedBytes(int device) {
  return allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[0].current;
}

// Returns the UUID as nvidia-smi prints it, without the prefix that distinguishes a whole GPU from an instance of one.
std::string UuidText(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

// Returns the entries of CUDA_VISIBLE_DEVICES, which are the devices 0, 1, ….
std::vector<std::string> VisibleDevices() {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> entries;
  std::string rest = variable == nullptr ? "" : variable;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    entries.push_back(rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return entries;
}

std::string NcclVersion() {
  const auto read = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int version = 0;
  if (read == nullptr || read(&version) != 0) return "";
  return NcclVersionText(version);
}

}  // namespace

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int FindCudaDevice(const std::string& name, std::string& problem) noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  const std::vector<std::string> visible = VisibleDevices();
  const std::string uuid = name.substr(std::min(name.size(), name.find('-') + 1));
  std::string valid;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp gpu;
    if (cudaGetDeviceProperties(&gpu, i) != cudaSuccess) continue;
    if (UuidText(gpu.uuid) == uuid ||
        (static_cast<size_t>(i) < visible.size() && visible[static_cast<size_t>(i)] == name)) {
      return i;
    }
    valid += (valid.empty() ? "" : ", ") + ("cuda:" + std::to_string(i)) + " (GPU-" + UuidText(gpu.uuid) + ")";
  }
  problem = count == 0
                ? "the NVIDIA driver finds no GPU on this machine (CUDA_VISIBLE_DEVICES may hide GPUs)"
                : "this process sees no such GPU (CUDA_VISIBLE_DEVICES may hide GPUs); valid values are " + valid;
  return -1;
}

DeviceIdentity IdentifyCudaDevice(int device) {
  DeviceIdentity identity;
  cudaDeviceProp gpu;
  if (cudaGetDeviceProperties(&gpu, device) == cudaSuccess) {
    identity.device = std::string(gpu.name) + " (sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) + ")";
  }
  std::getline(std::ifstream("/sys/module/nvidia/version"), identity.driver);
  int cuda = 0;
  if (cudaDriverGetVersion(&cuda) == cudaSuccess) {
    identity.driver += (identity.driver.empty() ? "CUDA " : ", CUDA ") + CudaVersionText(cuda);
  }
  identity.cudnn = std::to_string(at::detail::getCUDAHooks().versionRuntimeCuDNN());
  identity.nccl = NcclVersion();
  std::string problem;
  identity.joins_nccl = CudaNccl(problem) != nullptr && !CudaCard(device).empty();
  return identity;
}

bool ReadCudaMemory(int device, DeviceMemory& memory) noexcept {
  size_t free = 0, total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) return false;
  memory = {.total = static_cast<int64_t>(total), .free = static_cast<int64_t>(free)};
  try {
    memory.used = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[0].current;
    memory.cached = ReservedBytes(device) - memory.used;
  } catch (const std::exception&) {  // LibTorch has not used the device yet
  }
  if (base::Planted("plan_ignores_contexts")) memory.free = memory.total - memory.used - memory.cached;
  return true;
}

void ReleaseCudaCache(int) { allocator::emptyCache(); }

void LimitCudaMemory(int device, int64_t bytes) {
  DeviceMemory memory;
  if (!ReadCudaMemory(device, memory) || memory.total <= 0) return;
  const double part = static_cast<double>(bytes) / static_cast<double>(memory.total);
  allocator::setMemoryFraction(std::clamp(part, 0.0, 1.0), static_cast<c10::DeviceIndex>(device));
}

bool CudaDeviceWorks(int device) noexcept {
  try {
    const auto index = static_cast<c10::DeviceIndex>(device);
    const bool works = cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(index).stream()) == cudaSuccess;
    return cudaGetLastError() == cudaSuccess && works;
  } catch (const std::exception&) {
    return false;
  }
}

DeviceMark* RecordCudaMark(int device) {
  auto mark = std::make_unique<CudaMark>();
  mark->device = device;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&mark->event, cudaEventDefault));  // with timing
  const cudaError_t recorded =
      cudaEventRecord(mark->event, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream());
  if (recorded != cudaSuccess) {
    DestroyCudaMark(mark.release());
    C10_CUDA_CHECK(recorded);
  }
  return mark.release();
}

bool IsCudaMarkReached(const DeviceMark& mark) {
  const cudaError_t state = cudaEventQuery(EventOf(mark));
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();  // not an error
    return false;
  }
  C10_CUDA_CHECK(state);
  return true;
}

void WaitForCudaMark(const DeviceMark& mark) { C10_CUDA_CHECK(cudaEventSynchronize(EventOf(mark))); }

double SecondsBetweenCudaMarks(const DeviceMark& from, const DeviceMark& to) {
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, EventOf(from), EventOf(to)));
  return static_cast<double>(milliseconds) / 1000;
}

void DestroyCudaMark(DeviceMark* mark) noexcept {
  const std::unique_ptr<CudaMark> destroyed(static_cast<CudaMark*>(mark));
  (void)cudaSetDevice(destroyed->device);
  (void)cudaEventDestroy(destroyed->event);
}

c10::Allocator* CudaPinnedMemory() { return &PinnedMemory::Get(); }

bool BeginCudaCapture(int device) {
  auto graph = std::make_unique<CudaGraph>();
  graph->reserved = ReservedBytes(device);
  PinnedMemory::Get().BeginCapture();
  try {
    // Other threads decode and read on other streams at the same time.
    graph->graph.capture_begin(graph->pool->id, cudaStreamCaptureModeThreadLocal);
  } catch (const std::exception& error) {
    SayThatCaptureFailed(error);
    (void)cudaGetLastError();
    EndPoolsOfFailedCapture(device, graph->pool->id);
    graph->pool.reset();
    (void)graph.release();  // the destructor throws if no capture has begun
    PinnedMemory::Get().EndCapture();
    return false;
  }
  captured = std::move(graph);
  return true;
}

DeviceGraph* EndCudaCapture(int device) noexcept {
  std::unique_ptr<CudaGraph> graph = std::move(captured);
  if (graph == nullptr) return nullptr;
  bool ended = false;
  try {
    graph->graph.capture_end();
    ended = true;
    graph->reserved = std::max<int64_t>(0, ReservedBytes(device) - graph->reserved);
  } catch (const std::exception& error) {
    SayThatCaptureFailed(error);
    (void)cudaGetLastError();
    // If the failure came after the capture ended, the graph itself releases its pool.
    try {
      (void)graph->graph.pool();
    } catch (const std::exception&) {
      EndPoolsOfFailedCapture(device, graph->pool->id);
    }
  }
  PinnedMemory::Get().EndCapture();
  return ended ? graph.release() : nullptr;
}

int64_t CudaGraphBytes(const DeviceGraph& graph) noexcept { return static_cast<const CudaGraph&>(graph).reserved; }

void LaunchCudaGraph(DeviceGraph& graph) { static_cast<CudaGraph&>(graph).graph.replay(); }

void DestroyCudaGraph(DeviceGraph* graph) noexcept { delete static_cast<CudaGraph*>(graph); }

bool IsCudaCapturing(int) noexcept { return captured != nullptr; }

std::string CudaCard(int device) noexcept {
  const std::vector<std::string> visible = VisibleDevices();
  if (!visible.empty() && visible[0].starts_with("MIG-")) return "";
  cudaDeviceProp gpu;
  return cudaGetDeviceProperties(&gpu, device) == cudaSuccess ? "GPU-" + UuidText(gpu.uuid) : "";
}

void* CurrentCudaStream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

void* SideCudaStream(int device) {
  static std::mutex mutex;
  static std::map<int, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  auto stream = streams.find(device);
  if (stream == streams.end()) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    stream = streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/true, index)).first;
  }
  return stream->second.stream();
}

// A destroyed event stays valid in CUDA until nothing waits for it.
void WaitForCudaStream(int, void* stream, void* other) {
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t done = cudaEventRecord(event, static_cast<cudaStream_t>(other));
  if (done == cudaSuccess) done = cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
  (void)cudaEventDestroy(event);
  C10_CUDA_CHECK(done);
}

const NcclApi* CudaNccl(std::string& problem) noexcept { return OpenNccl(kNcclLibrary, problem); }

}  // namespace tessera::kernels
