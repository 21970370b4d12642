// Checks that the fake CUDA refuses what CUDA refuses; otherwise a run on it would prove nothing.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda_log.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

constexpr size_t kMib = 1 << 20;

constexpr char kTakes[] = "SHARED_CARD_TAKES";  // MiB

// Takes memory of a card of 64 MiB after a context of 10 MiB, prints how much is free, and exits at the end of its
// input.
[[noreturn]] void ShareCard() {
  setenv("FAKE_CUDA_CONTEXT_MIB", "10", 1);
  void* memory = nullptr;
  const bool took = cudaMalloc(&memory, static_cast<size_t>(std::atoi(std::getenv(kTakes))) * kMib) == cudaSuccess;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) _exit(1);
  std::printf("card: %s %d\n", took ? "took" : "full", static_cast<int>(free / kMib));
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  _exit(0);
}

[[maybe_unused]] const bool shares = std::getenv(kTakes) != nullptr && (ShareCard(), true);

// Two small cards. The fake reads its environment variables at the first call.
class SmallCards final {
 public:
  SmallCards() {
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    setenv("FAKE_CUDA_MEMORY_MIB", "64", 1);
    setenv("FAKE_CUDA_CONTEXT_MIB", "0", 1);
    setenv("FAKE_CUDA_PINNED_MIB", "256", 1);
    setenv("FAKE_CUDA_ARCH", "80", 1);
    setenv("FAKE_CUDA_FAULT", (folder_ / "fault").c_str(), 1);
    setenv("FAKE_CUDA_LOG", (folder_ / "log").c_str(), 1);
  }
  const TestFolder& folder() const { return folder_; }

 private:
  const TestFolder folder_;
};

const SmallCards cards;

class DeviceBlock final {
 public:
  explicit DeviceBlock(size_t bytes) : error_(cudaMalloc(&memory_, bytes)) {}
  ~DeviceBlock() { cudaFree(memory_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  void* get() const { return memory_; }
  cudaError_t error() const { return error_; }

 private:
  void* memory_ = nullptr;
  cudaError_t error_;
};

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, 0, 0), cudaSuccess);
  return stream;
}

template <int kNumber>
void NumberedKernel() {}
constexpr auto Kernel = NumberedKernel<0>;

cudaError_t Launch(cudaStream_t stream, void (*kernel)() = Kernel) {
  return cudaLaunchKernel(reinterpret_cast<void*>(kernel), dim3(1), dim3(32), nullptr, 0, stream);
}

// Returns a new stream for captures. The launch on it loads the kernel before.
cudaStream_t StreamOfLoadedKernel() {
  cudaStream_t stream = NewStream();
  EXPECT_EQ(Launch(stream), cudaSuccess);
  return stream;
}

TEST(FakeCudaTest, HasTheCardsThatTheEnvironmentAsksFor) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  cudaDeviceProp card;
  ASSERT_EQ(cudaGetDeviceProperties(&card, 1), cudaSuccess);
  EXPECT_EQ(card.major * 10 + card.minor, 80);
  EXPECT_EQ(card.totalGlobalMem, 64 * kMib);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(FakeCudaTest, AFullCardHasNoMoreMemoryAndTheOtherCardHas) {
  size_t free = 0, total = 0;
  const DeviceBlock most(60 * kMib);
  ASSERT_EQ(most.error(), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 4 * kMib);
  EXPECT_EQ(DeviceBlock(5 * kMib).error(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(DeviceBlock(5 * kMib).error(), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

class SharedCardTest : public ::testing::Test {
 protected:
  // A second process of this program that runs ShareCard instead of the tests.
  class Process final {
   public:
    Process(const TestFolder& folder, size_t mib) {
      EXPECT_EQ(pipe(input_), 0);
      int output[2];
      EXPECT_EQ(pipe(output), 0);
      id_ = fork();
      if (id_ == 0) {
        dup2(input_[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        for (const int descriptor : {input_[0], input_[1], output[0], output[1]}) close(descriptor);
        setenv("FAKE_CUDA_CARDS", (folder / "card").c_str(), 1);
        setenv(kTakes, std::to_string(mib).c_str(), 1);
        execl("/proc/self/exe", "shared", nullptr);
        _exit(1);
      }
      close(input_[0]);
      close(output[1]);
      output_ = fdopen(output[0], "r");
    }
    ~Process() {
      close(input_[1]);
      if (id_ > 0) waitpid(id_, nullptr, 0);
      std::fclose(output_);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    // "took" or "full", and the MiB that are free after that.
    std::pair<std::string, int> Answer() {
      char line[256], word[8];
      int free = -1;
      while (std::fgets(line, sizeof(line), output_) != nullptr) {
        if (std::sscanf(line, "card: %7s %d", word, &free) == 2) return {word, free};
      }
      return {"none", -1};
    }
    // Kills the process without reaping it, so that a zombie stays in the process table.
    void Kill() {
      kill(id_, SIGKILL);
      siginfo_t ended;
      waitid(P_PID, static_cast<id_t>(id_), &ended, WEXITED | WNOWAIT);
    }

   private:
    pid_t id_ = -1;
    int input_[2];
    std::FILE* output_ = nullptr;
  };

  const TestFolder folder_;
};

using Answer = std::pair<std::string, int>;

TEST_F(SharedCardTest, ProcessesThatShareACardFindWhatTheOthersLeave) {
  Process first(folder_, 20);
  EXPECT_EQ(first.Answer(), Answer("took", 34)) << "64 less 10 of a context and 20";
  Process second(folder_, 30);
  EXPECT_EQ(second.Answer(), Answer("full", 24));
  first.Kill();
  Process third(folder_, 30);
  EXPECT_EQ(third.Answer(), Answer("took", 14)) << "what a killed process had is free";
}

TEST(FakeCudaTest, NoMoreMemoryIsPinnedThanTheEnvironmentAllows) {
  void *all = nullptr, *more = nullptr;
  ASSERT_EQ(cudaHostAlloc(&all, 255 * kMib, 0), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&more, 2 * kMib, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaFreeHost(all), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&more, 2 * kMib, 0), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(more), cudaSuccess);
}

TEST(FakeCudaTest, BytesOfADeviceAreOnes) {
  const DeviceBlock block(kMib);
  int64_t number = 0;
  ASSERT_EQ(cudaMemcpy(&number, block.get(), sizeof(number), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(number, 0x0101010101010101);
}

TEST(FakeCudaDeathTest, AHostThatReadsThroughADevicesPointerCrashes) {
  const DeviceBlock block(kMib);
  EXPECT_DEATH(std::printf("%d", *static_cast<volatile char*>(block.get())), "");
}

TEST(FakeCudaTest, ACaptureRecordsAndItsLaunchesRun) {
  cudaStream_t stream = StreamOfLoadedKernel();
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(Launch(stream), cudaSuccess);
  EXPECT_EQ(Launch(stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2u);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
}

struct Illegal {
  const char* name;
  cudaError_t (*call)(cudaStream_t);
};

class FakeCudaCaptureTest : public testing::TestWithParam<Illegal> {};

TEST_P(FakeCudaCaptureTest, SpoilsTheGraph) {
  cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(GetParam().call(stream), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    WhatACaptureForbids, FakeCudaCaptureTest,
    testing::Values(Illegal{"Wait", [](cudaStream_t stream) { return cudaStreamSynchronize(stream); }},
                    Illegal{"WaitForTheDevice", [](cudaStream_t) { return cudaDeviceSynchronize(); }},
                    Illegal{"Query", [](cudaStream_t stream) { return cudaStreamQuery(stream); }},
                    Illegal{"Allocation", [](cudaStream_t) { return DeviceBlock(kMib).error(); }},
                    Illegal{"PinnedAllocation",
                            [](cudaStream_t) {
                              void* memory = nullptr;
                              return cudaHostAlloc(&memory, kMib, 0);
                            }},
                    Illegal{"PageableCopy",
                            [](cudaStream_t stream) {
                              static void* block = [] {  // the load must not happen during the capture
                                cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
                                cudaThreadExchangeStreamCaptureMode(&relaxed);
                                void* memory = nullptr;
                                cudaMalloc(&memory, kMib);
                                cudaThreadExchangeStreamCaptureMode(&relaxed);
                                return memory;
                              }();
                              const int64_t number = 0;
                              return cudaMemcpyAsync(block, &number, sizeof(number), cudaMemcpyHostToDevice, stream);
                            }}),
    [](const auto& info) { return std::string(info.param.name); });

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  return event;
}

// It does not matter which thread recorded the event.
TEST(FakeCudaTest, AnEventThatWasRecordedInACaptureIsOfNoUseAfterwards) {
  cudaStream_t stream = StreamOfLoadedKernel();
  const cudaEvent_t event = NewEvent();
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(Launch(stream), cudaSuccess);
  std::thread([&] { EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess); }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorInvalidValue);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(FakeCudaTest, ACaptureEndsOnItsThreadWithEveryStreamJoined) {
  cudaStream_t stream = StreamOfLoadedKernel(), side = NewStream();
  const cudaEvent_t fork = NewEvent(), join = NewEvent();
  cudaGraph_t graph = nullptr;
  for (const bool joins : {true, false}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(side, fork, 0), cudaSuccess);
    ASSERT_EQ(Launch(side), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(join, side), cudaSuccess);
    if (!joins) {
      ASSERT_EQ(Launch(side), cudaSuccess);  // after the event
    }
    ASSERT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
    std::thread([&] { EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureWrongThread); }).join();
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    EXPECT_EQ(graph != nullptr, joins);
  }
}

TEST(FakeCudaTest, AKernelIsLoadedBeforeItsCapture) {
  cudaStream_t stream = NewStream();
  cudaGraph_t graph = nullptr;
  const auto capture = [&](void (*kernel)(), cudaStreamCaptureMode mode) {
    EXPECT_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    const cudaError_t launched = Launch(stream, kernel), ended = cudaStreamEndCapture(stream, &graph);
    EXPECT_EQ(launched == cudaSuccess, ended == cudaSuccess);
    return launched;
  };
  EXPECT_EQ(capture(NumberedKernel<1>, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(capture(NumberedKernel<1>, cudaStreamCaptureModeThreadLocal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(capture(NumberedKernel<2>, cudaStreamCaptureModeRelaxed), cudaSuccess);
  ASSERT_EQ(Launch(stream, NumberedKernel<1>), cudaSuccess);
  EXPECT_EQ(capture(NumberedKernel<1>, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaFuncAttributes attributes;
  ASSERT_EQ(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(NumberedKernel<3>)), cudaSuccess);
  EXPECT_EQ(capture(NumberedKernel<3>, cudaStreamCaptureModeGlobal), cudaSuccess);
}

TEST(FakeCudaTest, ALaunchThatNoCardTakesIsRefused) {
  cudaStream_t stream = NewStream();
  const auto launch = [&](dim3 grid, dim3 block, size_t shared_bytes) {
    return cudaLaunchKernel(reinterpret_cast<const void*>(Kernel), grid, block, nullptr, shared_bytes, stream);
  };
  EXPECT_EQ(launch(1, 1024, 48 << 10), cudaSuccess);
  EXPECT_EQ(launch(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, dim3(32, 32, 2), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  const auto* kernel = reinterpret_cast<const void*>(Kernel);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10), cudaSuccess);
  EXPECT_EQ(launch(1, 32, 64 << 10), cudaSuccess);
}

TEST(FakeCudaTest, CallsForAnotherDeviceThanTheCurrentOneAreRefused) {
  cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
}

TEST(FakeCudaTest, AFileMakesTheDeviceFailAfterThatManyLaunches) {
  const auto fail = [] {
    cards.folder().Write("fault", "2");
    cudaStream_t stream = NewStream();
    const bool before = Launch(stream) == cudaSuccess && Launch(stream) == cudaSuccess;
    const bool after = Launch(stream) == cudaErrorIllegalAddress &&
                       cudaStreamSynchronize(stream) == cudaErrorIllegalAddress &&
                       cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress;
    _exit(before && after ? 0 : 1);
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(Launch(NewStream()), cudaSuccess) << "the file was another process's";
}

TEST(FakeCudaTest, TheLogSaysWhatAStepCost) {
  cudaStream_t stream = NewStream();
  const DeviceBlock block(kMib);
  int64_t state[2];
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, sizeof(state), 0), cudaSuccess);
  const auto end_step = [&] {
    EXPECT_EQ(cudaMemcpyAsync(pinned, block.get(), sizeof(state), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  };
  end_step();
  ASSERT_EQ(Launch(stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(state, block.get(), 8, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const DeviceBlock another(kMib);
  end_step();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(cards.folder() / "log");
  ASSERT_FALSE(logs.empty());
  const std::vector<FakeCudaStep> steps = logs.back().Steps();
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().count, 3);
  EXPECT_EQ(steps.back().waits, 1);
  EXPECT_EQ(steps.back().pageable_copies, 1);
  EXPECT_EQ(steps.back().mallocs, 1);
  EXPECT_EQ(steps.back().bytes_to_host, 24);
  EXPECT_EQ(steps.back().operations.at("copy D2H"), 2);
}

TEST(FakeCudaTest, AStepCountsWhatItsGraphsDo) {
  cudaStream_t stream = StreamOfLoadedKernel();
  const DeviceBlock block(kMib);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 16, 0), cudaSuccess);
  const auto end_step = [&] {
    EXPECT_EQ(cudaMemcpyAsync(pinned, block.get(), 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  };
  end_step();
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Launch(stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  end_step();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  end_step();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<FakeCudaStep> steps = FakeCudaLog::ReadAll(cards.folder() / "log").back().Steps();
  ASSERT_GE(steps.size(), 2u);
  EXPECT_EQ(steps[steps.size() - 2].count, 1) << "what is recorded is not executed";
  EXPECT_EQ(steps.back().count, 2 * 3 + 1);
}

TEST(FakeCudaTest, AnOperationOnTheDefaultStreamIsAFault) {
  ASSERT_EQ(Launch(NewStream()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  const auto on_default = [] { return FakeCudaLog::ReadAll(cards.folder() / "log").back().Count("default_stream"); };
  const int before = on_default();
  ASSERT_EQ(Launch(nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(on_default(), before + 1);
}

// Tests that need FAKE_CUDA_CLOCK. CMakeLists.txt runs them with it.
class FakeCudaClockTest : public ::testing::Test {
 protected:
  static bool IsOff() { return std::getenv("FAKE_CUDA_CLOCK") == nullptr; }

  static void LaunchLong(cudaStream_t stream) {
    constexpr unsigned kBlocks = 100000;  // 1.1 ms
    EXPECT_EQ(cudaLaunchKernel(reinterpret_cast<void*>(Kernel), dim3(kBlocks), dim3(1024), nullptr, 0, stream),
              cudaSuccess);
  }
  static cudaEvent_t Recorded(cudaStream_t stream) {
    const cudaEvent_t event = NewEvent();
    EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    return event;
  }
  static void Join(cudaStream_t stream, cudaStream_t other) {
    EXPECT_EQ(cudaStreamWaitEvent(stream, Recorded(other), 0), cudaSuccess);
  }
  // When everything that `issue` puts on the stream is done.
  template <typename Issue>
  static float Milliseconds(cudaStream_t stream, const Issue& issue) {
    const cudaEvent_t begin = Recorded(stream);
    issue();
    const cudaEvent_t end = Recorded(stream);
    EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
    float milliseconds = -1;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
    return milliseconds;
  }
};

constexpr float kLong = 1.094f, kTolerance = 0.03f;  // of a kernel; each launch takes 1 us

TEST_F(FakeCudaClockTest, AnEventIsNotReadyBeforeItsWorkIsDone) {
  if (IsOff()) return;
  cudaStream_t stream = NewStream();
  LaunchLong(stream);
  const cudaEvent_t event = Recorded(stream);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, event), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  LaunchLong(stream);
  int asked = 0;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) ++asked;
  EXPECT_GT(asked, 3);
  EXPECT_LT(asked, 100);
}

TEST_F(FakeCudaClockTest, StreamsRunAtTheSameTimeAndWaitForEachOther) {
  if (IsOff()) return;
  cudaStream_t stream = NewStream(), side = NewStream();
  EXPECT_NEAR(Milliseconds(stream, [&] { LaunchLong(stream); }), kLong, kTolerance);
  EXPECT_NEAR(Milliseconds(stream,
                           [&] {
                             Join(side, stream);
                             LaunchLong(stream);
                             LaunchLong(side);
                             Join(stream, side);
                           }),
              kLong, kTolerance);
  EXPECT_NEAR(Milliseconds(stream,
                           [&] {
                             LaunchLong(stream);
                             Join(side, stream);
                             LaunchLong(side);
                             Join(stream, side);
                           }),
              2 * kLong, kTolerance);
}

TEST_F(FakeCudaClockTest, AGraphTakesAsLongAsItsStreams) {
  if (IsOff()) return;
  cudaStream_t stream = StreamOfLoadedKernel(), side = NewStream();
  for (const bool one_after_the_other : {false, true}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Join(side, stream);
    LaunchLong(stream);
    if (one_after_the_other) Join(side, stream);
    LaunchLong(side);
    Join(stream, side);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_NEAR(Milliseconds(stream, [&] { EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess); }),
                (one_after_the_other ? 2 : 1) * kLong, kTolerance);
  }
}

TEST_F(FakeCudaClockTest, CopiesInOneDirectionTakeTurnsAndOverlapComputing) {
  if (IsOff()) return;
  constexpr size_t kBytes = 25 * kMib;  // 0.52 ms
  cudaStream_t stream = NewStream(), side = NewStream();
  const DeviceBlock block(kBytes);
  void* host = nullptr;
  ASSERT_EQ(cudaHostAlloc(&host, kBytes, 0), cudaSuccess);
  const auto copy = [&](cudaStream_t on, bool to_device) {
    EXPECT_EQ(cudaMemcpyAsync(to_device ? block.get() : host, to_device ? host : block.get(), kBytes,
                              to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, on),
              cudaSuccess);
  };
  const auto milliseconds = [&](bool first_to_device, bool second_to_device, bool computes) {
    return Milliseconds(stream, [&] {
      Join(side, stream);
      copy(stream, first_to_device);
      copy(side, second_to_device);
      if (computes) LaunchLong(side);
      Join(stream, side);
    });
  };
  EXPECT_NEAR(milliseconds(true, true, false), 1.05, kTolerance);
  EXPECT_NEAR(milliseconds(true, false, false), 0.53, kTolerance);
  EXPECT_NEAR(milliseconds(true, false, true), 0.53 + kLong, kTolerance);
}

TEST(FakeCudaLogTest, AKernelIsCalledByWhatItComputes) {
  EXPECT_EQ(FakeCudaLog::ShortName("_ZN7tessera7kernels6SquareEPi"), "Square");
  EXPECT_EQ(FakeCudaLog::ShortName("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
                                   "St5arrayIPcLm1EEEEviT0_T1_"),
            "elementwise_kernel FillFunctor");
}

}  // namespace
}  // namespace tessera
