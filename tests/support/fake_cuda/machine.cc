#include "tests/support/fake_cuda/machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

namespace tessera::fake_cuda {
namespace {

long Number(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atol(text);
}

// Parses "cudaMalloc:3,1/cudaEventRecord:2".
std::map<std::string, long> FailingCalls(const char* text) {
  std::map<std::string, long> calls;
  std::stringstream list(text == nullptr ? "" : text);
  for (std::string call; std::getline(list, call, ',');) {
    const size_t colon = call.find(':');
    calls[call.substr(0, colon)] = colon == std::string::npos ? 1 : std::atol(call.c_str() + colon + 1);
  }
  return calls;
}

// Returns the error that a function returns when it fails on request.
cudaError_t FailureOf(std::string_view function) {
  if (function.find("Capture") != std::string_view::npos) return cudaErrorStreamCaptureInvalidated;
  const bool allocates =
      function.find("Alloc") != std::string_view::npos || function.find("Instantiate") != std::string_view::npos;
  return allocates ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

}  // namespace

Options Options::FromEnvironment() {
  const long arch = Number("FAKE_CUDA_ARCH", 90);
  const char* fault = std::getenv("FAKE_CUDA_FAULT");
  const char* cards = std::getenv("FAKE_CUDA_CARDS");
  const char* via = std::getenv("FAKE_CUDA_NCCL_VIA");
  return {.devices = static_cast<int>(std::clamp(Number("FAKE_CUDA_DEVICES", 1), 1L, static_cast<long>(kMostDevices))),
          .memory_bytes = static_cast<size_t>(Number("FAKE_CUDA_MEMORY_MIB", 143771)) << 20,
          .context_bytes = static_cast<size_t>(Number("FAKE_CUDA_CONTEXT_MIB", 520)) << 20,
          .pinned_bytes = static_cast<size_t>(Number("FAKE_CUDA_PINNED_MIB", 1L << 40)) << 20,
          .cards = cards == nullptr ? "" : cards,
          .major = static_cast<int>(arch / 10),
          .minor = static_cast<int>(arch % 10),
          .driver = static_cast<int>(Number("FAKE_CUDA_DRIVER", 13000)),
          .cudnn = static_cast<size_t>(Number("FAKE_CUDA_CUDNN", 91900)),
          .nvlink = Number("FAKE_CUDA_NVLINK", 0) != 0,
          .clock = Number("FAKE_CUDA_CLOCK", 0) != 0,
          .nccl_via = via == nullptr ? "P2P/CUMEM" : via,
          .fault_file = fault == nullptr ? "" : fault,
          .failing_calls = FailingCalls(std::getenv("FAKE_CUDA_FAIL"))};
}

void AddressRanges::Add(void* begin, Range range) {
  const std::lock_guard lock(mutex_);
  ranges_[static_cast<const char*>(begin)] = range;
}

std::optional<AddressRanges::Range> AddressRanges::Remove(void* begin) {
  const std::lock_guard lock(mutex_);
  const auto it = ranges_.find(static_cast<const char*>(begin));
  if (it == ranges_.end()) return std::nullopt;
  const Range range = it->second;
  ranges_.erase(it);
  return range;
}

std::optional<AddressRanges::Range> AddressRanges::Find(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto it = ranges_.upper_bound(static_cast<const char*>(address));
  if (it == ranges_.begin()) return std::nullopt;
  --it;
  if (static_cast<const char*>(address) >= it->first + it->second.bytes) return std::nullopt;
  return it->second;
}

size_t AddressRanges::Bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [begin, range] : ranges_) bytes += range.bytes;
  return bytes;
}

bool AddressRanges::IsSplit(const void* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const char*>(memory);
  const auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return false;
  const auto& [first, range] = *std::prev(after);
  return begin < first + range.bytes && begin + bytes > first + range.bytes;
}

Machine::Machine() : options_(Options::FromEnvironment()) {
  for (int device = 0; device < options_.devices; ++device) {
    const std::string file = options_.cards.empty() ? "" : options_.cards + "." + std::to_string(device);
    cards_.push_back(std::make_unique<CardMemory>(file, options_.memory_bytes));
  }
}

bool Machine::Take(size_t bytes, int device) {
  const auto card = static_cast<size_t>(device);
  if (!NeedContext(device) || !cards_[card]->Take(bytes)) return false;
  size_t used = 0;
  {
    const std::lock_guard lock(mutex_);
    used = used_[card] += bytes;
  }
  log_.Write("malloc", bytes, used);
  return true;
}

void Machine::GiveBack(size_t bytes, int device) {
  const auto card = static_cast<size_t>(device);
  cards_[card]->GiveBack(bytes);
  size_t used = 0;
  {
    const std::lock_guard lock(mutex_);
    used = used_[card] -= bytes;
  }
  log_.Write("free", bytes, used);
}

void* Machine::Reserve(size_t bytes, int device) {
  void* begin =
      mmap(nullptr, std::max<size_t>(bytes, 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  device_memory_.Add(begin, {.bytes = bytes, .device = device});
  return begin;
}

void Machine::Unreserve(void* begin) {
  if (const auto range = device_memory_.Remove(begin)) munmap(begin, std::max<size_t>(range->bytes, 1));
}

void* Machine::Allocate(size_t bytes, int device) { return Take(bytes, device) ? Reserve(bytes, device) : nullptr; }

bool Machine::Free(void* begin) {
  const auto range = device_memory_.Find(begin);
  if (!range) return false;
  {
    const std::lock_guard lock(mutex_);
    contents_.erase(begin);
  }
  Unreserve(begin);
  GiveBack(range->bytes, range->device);
  return true;
}

size_t Machine::FreeBytes(int device) {
  (void)NeedContext(device);
  return cards_[static_cast<size_t>(device)]->FreeBytes();
}

void Machine::SetContent(const void* begin, std::string bytes) {
  const std::lock_guard lock(mutex_);
  contents_[begin] = std::move(bytes);
}

std::string Machine::ContentAt(const void* begin, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = contents_.find(begin);
  std::string content = it == contents_.end() ? "" : it->second;
  content.resize(bytes, 1);
  return content;
}

bool Machine::CountLaunch() {
  if (options_.fault_file.empty()) return true;
  const std::lock_guard lock(mutex_);
  if (!launches_left_ && access(options_.fault_file.c_str(), F_OK) == 0) {
    long launches = 0;
    std::ifstream(options_.fault_file) >> launches;
    if (unlink(options_.fault_file.c_str()) == 0) launches_left_ = launches;  // this process, and no other, removed it
  }
  if (launches_left_ && --*launches_left_ < 0) failed_ = true;
  return !failed_;
}

bool Machine::FailsNow(const std::string& function) {
  if (options_.failing_calls.empty()) return false;
  const std::lock_guard lock(mutex_);
  bool fails = false;
  for (const std::string& name : {function, std::to_string(CurrentDevice()) + "/" + function}) {
    const auto failing = options_.failing_calls.find(name);
    if (failing != options_.failing_calls.end() && ++calls_[name] == failing->second) fails = true;
  }
  return fails;
}

bool Machine::NeedContext(int device) {
  {
    const std::lock_guard lock(mutex_);
    bool& has_context = contexts_[static_cast<size_t>(device)];
    if (has_context) return true;
    if (!cards_[static_cast<size_t>(device)]->Take(options_.context_bytes)) return false;
    has_context = true;
  }
  log_.Write("context", device);
  return true;
}

bool Machine::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

Machine& TheMachine() {
  static Machine* machine = new Machine();
  return *machine;
}

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t& LastError() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t Finish(const char* function, cudaError_t error) {
  if (!TheMachine().NeedContext(CurrentDevice()) && error == cudaSuccess) error = cudaErrorMemoryAllocation;
  return FinishWithoutContext(function, error);
}

cudaError_t FinishWithoutContext(const char* function, cudaError_t error) {
  if (error == cudaSuccess && TheMachine().failed()) error = cudaErrorIllegalAddress;
  if (error == cudaSuccess && TheMachine().FailsNow(function)) error = FailureOf(function);
  if (error == cudaSuccess) return error;
  LastError() = error;
  TheMachine().log().Write("error", function, static_cast<int>(error));
  TheMachine().log().Flush();
  return error;
}

}  // namespace tessera::fake_cuda
