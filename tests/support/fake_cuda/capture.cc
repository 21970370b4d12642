#include "tests/support/fake_cuda/capture.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>

#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

// Guards all graphs, streams and events.
std::mutex mutex;
std::set<Graph*> recording;
std::set<Stream*> streams;
long last_graph = 0, last_stream = 0;

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local std::set<Graph*> own_graphs;  // that this thread began to record

// Null for the default streams, which cannot record.
Stream* Of(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread
             ? nullptr
             : reinterpret_cast<Stream*>(stream);
}

bool IsHere(const Stream* stream) { return stream == nullptr || stream->device == CurrentDevice(); }

Event* Of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

// Checks that the host may query the event. Requires the mutex.
cudaError_t CheckKnown(const Event& event) {
  if (event.device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
  if (event.graph == nullptr) return cudaSuccess;
  if (!recording.contains(event.graph)) return cudaErrorInvalidValue;
  event.graph->spoiled = true;
  return cudaErrorCapturedEvent;
}

}  // namespace

namespace {

// Queues the work after everything that the stream already has. Requires the mutex.
void Spend(Stream& stream, const Work& work) {
  card_clock::Issue();
  Interval interval{.stream = stream.number, .engine = work.engine};
  if (stream.graph != nullptr) {
    interval.begin = stream.end_in_graph;
    interval.end = stream.end_in_graph += work.nanoseconds;
    stream.graph->intervals.push_back(interval);
    return;
  }
  interval.begin = std::max(stream.end, card_clock::Now());
  const bool copies = work.engine == Engine::kToDevice || work.engine == Engine::kToHost;
  int64_t* const others = copies ? &card_clock::CopiesEnd(stream.device, work.engine) : nullptr;
  if (copies) interval.begin = std::max(interval.begin, *others);
  interval.end = stream.end = interval.begin + work.nanoseconds;
  if (copies) *others = interval.end;
  card_clock::Log(interval);
}

}  // namespace

long Record(const char* function, cudaStream_t stream, const Work& work) {
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  if (found == nullptr) TheMachine().log().Write("default_stream", function);
  if (found != nullptr && card_clock::IsOn()) Spend(*found, work);
  if (found == nullptr || found->graph == nullptr) return 0;
  ++found->graph->operations;
  ++found->work;
  if (found != found->graph->origin) found->joined = false;
  return found->graph->number;
}

int64_t EndOf(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  const Stream* const found = Of(stream);
  return found == nullptr ? 0 : found->end;
}

int64_t EndOfDevice() {
  const std::lock_guard lock(mutex);
  int64_t end = 0;
  for (const Stream* stream : streams) {
    if (IsHere(stream)) end = std::max(end, stream->end);
  }
  return end;
}

bool IsRecording(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  const Stream* const found = Of(stream);
  return found != nullptr && found->graph != nullptr;
}

cudaError_t CheckUnsafe(Unsafe kind, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (recording.empty()) return cudaSuccess;
  Stream* waited = kind == Unsafe::kWait ? Of(stream) : nullptr;
  bool forbidden = false;
  for (Graph* graph : recording) {
    const bool here = own_graphs.contains(graph) || graph->mode == cudaStreamCaptureModeGlobal;
    const bool records = waited != nullptr && waited->graph == graph;
    if (!records &&
        (!here || thread_mode == cudaStreamCaptureModeRelaxed || graph->mode == cudaStreamCaptureModeRelaxed)) {
      continue;
    }
    graph->spoiled = true;
    forbidden = true;
  }
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t Load(LazyCode& code, const std::string& name) {
  static const bool eager = [] {
    const char* const loading = std::getenv("CUDA_MODULE_LOADING");
    return loading != nullptr && std::string_view(loading) == "EAGER";
  }();
  const unsigned here = 1u << CurrentDevice();
  if (eager || (code.loaded & here) != 0) return cudaSuccess;
  if (const cudaError_t error = CheckUnsafe(Unsafe::kLoading, nullptr); error != cudaSuccess) {
    TheMachine().log().Write("load_in_capture", name);
    return error;
  }
  code.loaded |= here;
  return cudaSuccess;
}

}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are CUDA's own functions

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(mutex);
  auto* made = new Stream{.device = CurrentDevice(), .number = ++last_stream};
  streams.insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return Finish("cudaStreamCreateWithPriority");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  if (streams.erase(found) == 0) return Finish("cudaStreamDestroy", cudaErrorInvalidResourceHandle);
  delete found;
  return Finish("cudaStreamDestroy");
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return Finish("cudaStreamGetPriority");
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const cudaError_t unsafe = CheckUnsafe(Unsafe::kWait, stream);
  if (unsafe == cudaSuccess && !card_clock::Ask(EndOf(stream))) return cudaErrorNotReady;
  return Finish("cudaStreamQuery", unsafe);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  TheMachine().log().Write("wait", "cudaStreamSynchronize");
  TheMachine().log().Flush();
  const cudaError_t unsafe = CheckUnsafe(Unsafe::kWait, stream);
  if (unsafe == cudaSuccess) card_clock::WaitUntil(EndOf(stream));
  return Finish("cudaStreamSynchronize", unsafe);
}

cudaError_t cudaDeviceSynchronize() {
  TheMachine().log().Write("wait", "cudaDeviceSynchronize");
  TheMachine().log().Flush();
  const cudaError_t unsafe = CheckUnsafe(Unsafe::kWait, nullptr);
  if (unsafe == cudaSuccess) card_clock::WaitUntil(EndOfDevice());
  return Finish("cudaDeviceSynchronize", unsafe);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex);
  const Event& waited = *Of(event);
  Graph* graph = waited.graph;
  Stream* found = Of(stream);
  if (!IsHere(found)) return Finish("cudaStreamWaitEvent", cudaErrorInvalidResourceHandle);
  if (graph != nullptr && !recording.contains(graph)) return Finish("cudaStreamWaitEvent", cudaErrorInvalidValue);
  if (found != nullptr && graph == nullptr && found->graph == nullptr) found->end = std::max(found->end, waited.end);
  if (found != nullptr && graph != nullptr) {
    found->end_in_graph = std::max(found->graph == graph ? found->end_in_graph : 0, waited.end);
    found->graph = graph;
    if (found != graph->origin) found->joined = false;
    if (waited.stream->work == waited.work) waited.stream->joined = true;
  }
  return Finish("cudaStreamWaitEvent");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{.device = CurrentDevice()});
  return Finish("cudaEventCreateWithFlags");
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return Finish("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  Event* recorded = Of(event);
  Stream* found = Of(stream);
  if (!IsHere(found) || recorded->device != CurrentDevice()) {
    return Finish("cudaEventRecord", cudaErrorInvalidResourceHandle);
  }
  recorded->graph = found == nullptr ? nullptr : found->graph;
  recorded->stream = found;
  recorded->work = found == nullptr ? 0 : found->work;
  recorded->end = found == nullptr          ? 0
                  : found->graph != nullptr ? found->end_in_graph
                                            : std::max(found->end, card_clock::Now());
  recorded->time = std::chrono::steady_clock::now();
  return Finish("cudaEventRecord");
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  const cudaError_t known = CheckKnown(*Of(event));
  if (known == cudaSuccess && !card_clock::Ask(Of(event)->end)) return LastError() = cudaErrorNotReady;
  return Finish("cudaEventQuery", known);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  TheMachine().log().Write("wait", "cudaEventSynchronize");
  TheMachine().log().Flush();
  int64_t end = 0;
  {
    const std::lock_guard lock(mutex);
    if (const cudaError_t known = CheckKnown(*Of(event)); known != cudaSuccess) {
      return Finish("cudaEventSynchronize", known);
    }
    end = Of(event)->end;
  }
  const cudaError_t unsafe = CheckUnsafe(Unsafe::kWait, nullptr);
  if (unsafe == cudaSuccess) card_clock::WaitUntil(end);
  return Finish("cudaEventSynchronize", unsafe);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(mutex);
  for (const cudaEvent_t event : {begin, end}) {
    if (const cudaError_t known = CheckKnown(*Of(event)); known != cudaSuccess) {
      return Finish("cudaEventElapsedTime", known);
    }
  }
  if (card_clock::IsOn()) {
    for (const cudaEvent_t event : {begin, end}) {
      if (Of(event)->end > card_clock::Now()) return Finish("cudaEventElapsedTime", cudaErrorNotReady);
    }
    *milliseconds = static_cast<float>(Of(end)->end - Of(begin)->end) / 1e6f;
    return Finish("cudaEventElapsedTime");
  }
  const auto elapsed = Of(end)->time - Of(begin)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return Finish("cudaEventElapsedTime");
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return Finish("cudaThreadExchangeStreamCaptureMode");
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  Graph* graph = found == nullptr ? nullptr : found->graph;
  *status = graph == nullptr ? cudaStreamCaptureStatusNone
            : graph->spoiled ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
  return Finish("cudaStreamIsCapturing");
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     size_t* dependencies) {
  const cudaError_t error = cudaStreamIsCapturing(stream, status);
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  Graph* recorded = found == nullptr ? nullptr : found->graph;
  if (id != nullptr) *id = recorded == nullptr ? 0 : static_cast<unsigned long long>(recorded->number);
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(recorded);
  if (dependencies != nullptr) *dependencies = 0;
  return error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  if (found == nullptr || found->graph != nullptr || !IsHere(found)) {
    return Finish("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t begun = Finish("cudaStreamBeginCapture"); begun != cudaSuccess) return begun;
  found->graph = new Graph{.number = ++last_graph, .origin = found, .mode = mode};
  found->end_in_graph = 0;
  recording.insert(found->graph);
  own_graphs.insert(found->graph);
  TheMachine().log().Write("capture", found->graph->number);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex);
  Stream* found = Of(stream);
  if (found == nullptr || found->graph == nullptr) return Finish("cudaStreamEndCapture", cudaErrorIllegalState);
  Graph* recorded = found->graph;
  *graph = nullptr;
  if (!own_graphs.contains(recorded) && recorded->mode != cudaStreamCaptureModeRelaxed) {
    return Finish("cudaStreamEndCapture", cudaErrorStreamCaptureWrongThread);
  }
  cudaError_t error = recorded->spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  for (Stream* joined : streams) {
    if (joined->graph != recorded) continue;
    if (!joined->joined && error == cudaSuccess) error = cudaErrorStreamCaptureUnjoined;
    joined->joined = true;
    joined->graph = nullptr;
  }
  recording.erase(recorded);
  own_graphs.erase(recorded);
  error = Finish("cudaStreamEndCapture", error);
  if (error != cudaSuccess) {
    TheMachine().log().Write("capture_failed", recorded->number);
    return error;
  }
  *graph = reinterpret_cast<cudaGraph_t>(recorded);
  TheMachine().log().Write("captured", recorded->number, recorded->operations);
  return cudaSuccess;
}

// A graph and its executable are one object in the fake, which lives until the process ends.
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return Finish("cudaGraphInstantiateWithFlags");
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return Finish("cudaGraphUpload"); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return Finish("cudaGraphDestroy"); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return Finish("cudaGraphExecDestroy"); }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* nodes) {
  *nodes = static_cast<size_t>(reinterpret_cast<Graph*>(graph)->operations);
  return Finish("cudaGraphGetNodes");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const auto* graph = reinterpret_cast<Graph*>(executable);
  if (Stream* const found = Of(stream); found != nullptr && card_clock::IsOn()) {
    const std::lock_guard lock(mutex);
    card_clock::Issue();
    const int64_t begin = std::max(found->end, card_clock::Now());
    for (Interval interval : graph->intervals) {
      interval.begin += begin;
      interval.end += begin;
      card_clock::Log(interval);
      found->end = std::max(found->end, interval.end);
    }
  }
  TheMachine().log().Write("graph", graph->number, graph->operations);
  return Finish("cudaGraphLaunch", TheMachine().CountLaunch() ? cudaSuccess : cudaErrorIllegalAddress);
}

}  // extern "C"
