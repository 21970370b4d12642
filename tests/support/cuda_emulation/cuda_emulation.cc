#include "tests/support/cuda_emulation/cuda_emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_ADDRESS_SANITIZER
#endif
#endif
#ifdef TESSERA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::kernels::cuda {

// The memory that kernels declare as `extern __shared__`.
alignas(16) unsigned char shared_memory[cuda_emulation::kSharedBytes];

}  // namespace tessera::kernels::cuda

namespace tessera::cuda_emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kStackBytes = size_t{64} << 10;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Announces to AddressSanitizer, in builds that have it, that the thread switches to another stack.
class StackSwitch final {
 public:
  void Leave([[maybe_unused]] const void* bottom, [[maybe_unused]] size_t bytes) {
#ifdef TESSERA_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&frames_, bottom, bytes);
#endif
  }
  void Return([[maybe_unused]] const void** left, [[maybe_unused]] size_t* left_bytes) {
#ifdef TESSERA_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(frames_, left, left_bytes);
#endif
  }

 private:
  void* frames_ = nullptr;
};

enum class Waits { kNot, kForWarp, kForShuffle, kForBlock, kDone };

struct Fiber {
  ucontext_t context;
  StackSwitch stack_switch;
  unsigned char* stack = nullptr;
  Waits waits = Waits::kNot;
  uint64_t bits = 0;  // of a shuffle: the lane's input, then its result
  unsigned source = 0;
  Position position;
};

// The stacks of a block's threads. Their pages are allocated at the first access.
class Stacks final {
 public:
  explicit Stacks(unsigned threads)
      : bytes_(kStackBytes * threads),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Stacks() {
#ifdef TESSERA_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(memory_, bytes_);
#endif
    munmap(memory_, bytes_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  unsigned char* Of(unsigned thread) { return static_cast<unsigned char*>(memory_) + kStackBytes * thread; }

 private:
  const size_t bytes_;
  void* const memory_;
};

// One launch: its fibers, which run one block after another.
class Launch final {
 public:
  Launch(Order order, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body);

  void RunBlock(unsigned x, unsigned y, unsigned z);
  const Position& Running() const { return fibers_[running_].position; }
  unsigned lane() const { return running_ % kWarp; }
  int64_t barriers() const { return barriers_; }
  // Ends the turn of the running thread.
  void Wait(Waits what);
  uint64_t Exchange(uint64_t bits, unsigned source);

 private:
  static void Enter();
  void Resume(unsigned thread);
  // Returns the numbers below `count` in the order of their turns.
  std::vector<unsigned> Turns(unsigned count);
  // Runs until every lane of the warp waits for the same thing, and returns that.
  Waits RunToWait(unsigned warp);
  // Runs until every lane of the warp waits for the block or is done.
  void RunWarp(unsigned warp);
  // Does the same for all warps. Any of them may continue after each shuffle.
  void RunWarpsInTurns(unsigned warps);
  void ReleaseWarp(unsigned first, Waits what);

  const Order order_;
  std::mt19937 random_{1};
  const size_t shared_bytes_;
  const std::function<void()>& body_;
  Stacks stacks_;
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  StackSwitch scheduler_switch_;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  std::exception_ptr thrown_;
  unsigned running_ = 0;
  int64_t barriers_ = 0;
};

Launch* current = nullptr;
Counts counts;

Launch::Launch(Order order, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body)
    : order_(order), shared_bytes_(shared_bytes), body_(body), stacks_(threads), fibers_(threads) {
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber& fiber = fibers_[thread];
    fiber.stack = stacks_.Of(thread);
    fiber.position = {.thread = {thread, 0, 0}, .block = {}, .block_size = {threads, 1, 1}, .grid_size = grid};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Launch::Enter, 0);
  }
}

// The entry point of every fiber. It runs the kernel once for each block and never returns.
void Launch::Enter() {
  Launch& launch = *current;
  Fiber& fiber = launch.fibers_[launch.running_];
  fiber.stack_switch.Return(&launch.scheduler_stack_, &launch.scheduler_stack_bytes_);
  for (;;) {
    try {
      launch.body_();
    } catch (...) {
      launch.thrown_ = std::current_exception();
    }
    launch.Wait(Waits::kDone);
  }
}

void Launch::Resume(unsigned thread) {
  running_ = thread;
  Fiber& fiber = fibers_[thread];
  scheduler_switch_.Leave(fiber.stack, kStackBytes);
  swapcontext(&scheduler_, &fiber.context);
  scheduler_switch_.Return(nullptr, nullptr);
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void Launch::Wait(Waits what) {
  Fiber& fiber = fibers_[running_];
  fiber.waits = what;
  fiber.stack_switch.Leave(scheduler_stack_, scheduler_stack_bytes_);
  swapcontext(&fiber.context, &scheduler_);
  fiber.stack_switch.Return(nullptr, nullptr);
}

uint64_t Launch::Exchange(uint64_t bits, unsigned source) {
  Fiber& fiber = fibers_[running_];
  fiber.bits = bits;
  fiber.source = source;
  Wait(Waits::kForShuffle);
  return fiber.bits;
}

void Launch::ReleaseWarp(unsigned first, Waits what) {
  uint64_t brought[kWarp];
  for (unsigned lane = 0; lane < kWarp; ++lane) brought[lane] = fibers_[first + lane].bits;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    Fiber& fiber = fibers_[first + lane];
    if (what == Waits::kForShuffle) fiber.bits = brought[fiber.source];
    fiber.waits = Waits::kNot;
  }
}

std::vector<unsigned> Launch::Turns(unsigned count) {
  std::vector<unsigned> turns(count);
  std::iota(turns.begin(), turns.end(), 0u);
  if (order_ == Order::kDescending) std::reverse(turns.begin(), turns.end());
  if (order_ == Order::kRandom) std::shuffle(turns.begin(), turns.end(), random_);
  return turns;
}

Waits Launch::RunToWait(unsigned warp) {
  const unsigned first = warp * kWarp;
  for (const unsigned lane : Turns(kWarp)) {
    if (fibers_[first + lane].waits == Waits::kNot) Resume(first + lane);
  }
  const Waits what = fibers_[first].waits;
  for (unsigned lane = 1; lane < kWarp; ++lane) {
    if (fibers_[first + lane].waits != what) {
      throw std::logic_error("threads of one warp wait at different barriers, or one has ended before another's");
    }
  }
  return what;
}

void Launch::RunWarp(unsigned warp) {
  for (;;) {
    const Waits what = RunToWait(warp);
    if (what == Waits::kForBlock || what == Waits::kDone) return;
    ReleaseWarp(warp * kWarp, what);
  }
}

void Launch::RunWarpsInTurns(unsigned warps) {
  std::vector<unsigned> running = Turns(warps);
  while (!running.empty()) {
    const size_t turn = random_() % running.size();
    const Waits what = RunToWait(running[turn]);
    if (what == Waits::kForBlock || what == Waits::kDone) {
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(turn));
    } else {
      ReleaseWarp(running[turn] * kWarp, what);
    }
  }
}

void Launch::RunBlock(unsigned x, unsigned y, unsigned z) {
  std::fill_n(kernels::cuda::shared_memory, shared_bytes_, static_cast<unsigned char>(0x7f));
  for (Fiber& fiber : fibers_) {
    fiber.waits = Waits::kNot;
    fiber.position.block = {x, y, z};
  }
  const auto warps = static_cast<unsigned>(fibers_.size()) / kWarp;
  for (;;) {
    if (order_ == Order::kRandom) {
      RunWarpsInTurns(warps);
    } else {
      for (const unsigned warp : Turns(warps)) RunWarp(warp);
    }
    const Waits what = fibers_[0].waits;
    for (Fiber& fiber : fibers_) {
      if (fiber.waits != what) throw std::logic_error("a barrier of the block that not all its threads reach");
    }
    if (what == Waits::kDone) return;
    ++barriers_;
    for (Fiber& fiber : fibers_) fiber.waits = Waits::kNot;
  }
}

// Sets the launch that kernel threads find, and how much of the shared memory it may use. With AddressSanitizer, access
// to the rest is an error.
class Current final {
 public:
  Current(Launch* launch, size_t shared_bytes) : shared_bytes_(shared_bytes) {
    current = launch;
#ifdef TESSERA_ADDRESS_SANITIZER
    __asan_poison_memory_region(kernels::cuda::shared_memory + shared_bytes_, kSharedBytes - shared_bytes_);
#endif
  }
  ~Current() {
#ifdef TESSERA_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(kernels::cuda::shared_memory + shared_bytes_, kSharedBytes - shared_bytes_);
#endif
    current = nullptr;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  [[maybe_unused]] const size_t shared_bytes_;
};

void RequireWholeWarp(unsigned mask) {
  if (mask != kWholeWarp) throw std::logic_error("a barrier of some lanes of a warp");
}

}  // namespace

const Position& Here() { return current->Running(); }
unsigned Lane() { return current->lane(); }
Counts Counted() { return counts; }

void RunKernel(Order order, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body) {
  if (threads == 0 || threads % kWarp != 0 || threads > kMaxThreads) {
    throw std::logic_error("a block of " + std::to_string(threads) + " threads; whole warps, at most 1024, are valid");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 0xffffu || grid.z > 0xffffu) {
    throw std::logic_error("a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                           std::to_string(grid.z) + " blocks");
  }
  if (shared_bytes > kSharedBytes) throw std::logic_error("more shared memory than a block has");
  Launch launch(order, grid, threads, shared_bytes, body);
  const Current running(&launch, shared_bytes);
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = order == Order::kDescending ? blocks - 1 - i : i;
    const auto x = static_cast<unsigned>(block % grid.x), y = static_cast<unsigned>(block / grid.x % grid.y);
    const auto z = static_cast<unsigned>(block / grid.x / grid.y);
    launch.RunBlock(x, y, z);
  }
  counts.launches += 1;
  counts.barriers += launch.barriers();
}

void BlockBarrier() { current->Wait(Waits::kForBlock); }

void WarpBarrier(unsigned mask) {
  RequireWholeWarp(mask);
  current->Wait(Waits::kForWarp);
}

uint64_t Shuffle(unsigned mask, uint64_t bits, unsigned source) {
  RequireWholeWarp(mask);
  if (source >= kWarp) throw std::logic_error("a shuffle from a lane that is not there");
  return current->Exchange(bits, source);
}

void RejectMisaligned(const void* pointer, size_t bytes) {
  throw std::logic_error("a vector access that is not aligned to " + std::to_string(bytes) +
                         " bytes: the address ends in " + std::to_string(reinterpret_cast<uintptr_t>(pointer) % bytes));
}

}  // namespace tessera::cuda_emulation
