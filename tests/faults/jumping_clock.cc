// This library is loaded with LD_PRELOAD and shifts the clocks of a program and its children. The file $JUMPING_CLOCK
// holds two int64: the seconds that are added to the wall clock and those added to the monotonic clock. Waits follow
// the shifted time: none asks the kernel for more than kSlice, and absolute times are converted to the machine's
// clocks. The library covers the waits of gRPC, Abseil, Asio and the standard library. It does not change sleeps, which
// are short in the server.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kMillisecond = 1000000, kSecond = 1000 * kMillisecond;
constexpr int64_t kSlice = 20 * kMillisecond;

// Returns the function that would be called without this library.
template <class Function>
Function* Next(Function* /*ours*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsCalendar(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

bool NeverJumps(clockid_t clock) {
  return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW ||
         clock == CLOCK_BOOTTIME;
}

// Returns the shift of `clock`, in seconds.
int64_t Ahead(clockid_t clock) {
  static const volatile int64_t* const seconds = []() -> const volatile int64_t* {
    const char* name = std::getenv("JUMPING_CLOCK");
    const int file = name == nullptr ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return nullptr;
    void* mapped = mmap(nullptr, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? nullptr : static_cast<const volatile int64_t*>(mapped);
  }
  ();
  if (seconds == nullptr) return 0;
  return IsCalendar(clock) ? seconds[0] : NeverJumps(clock) ? seconds[1] : 0;
}

int64_t Nanoseconds(const timespec& time) {
  return std::min<int64_t>(time.tv_sec, INT64_MAX / kSecond - 1) * kSecond + time.tv_nsec;
}

timespec Timespec(int64_t nanoseconds) { return {.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond}; }

// Returns the program's shifted time.
int64_t Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return Nanoseconds(now);
}

// `program_end` or one slice from now, whichever is earlier, on the machine's clock.
timespec EndOfSlice(clockid_t clock, int64_t program_end) {
  const int64_t end = std::min(program_end, Now(clock) + kSlice) - Ahead(clock) * kSecond;
  return Timespec(std::max<int64_t>(end, 0));
}

// Calls `wait(milliseconds)` until it returns a value other than 0 or the time is over.
template <class Wait>
int InSlices(int milliseconds, const Wait& wait) {
  if (milliseconds <= 0) return wait(milliseconds);
  const int64_t end = Now(CLOCK_MONOTONIC) + milliseconds * kMillisecond;
  while (true) {
    const int64_t left = std::clamp<int64_t>(end - Now(CLOCK_MONOTONIC), 0, kSlice);
    const int result = wait(static_cast<int>((left + kMillisecond - 1) / kMillisecond));
    if (result != 0 || left == 0) return result;
  }
}

}  // namespace

extern "C" {

long syscall(long number, ...) noexcept {
  static const auto next = Next(syscall, "syscall");
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto call = [&](long time) {
    return next(number, arguments[0], arguments[1], arguments[2], time, arguments[4], arguments[5]);
  };
  const bool until = number == SYS_futex && (arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && arguments[3] != 0;
  if (!until) return call(arguments[3]);
  const clockid_t clock = (arguments[1] & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  const int64_t end = Nanoseconds(*reinterpret_cast<const timespec*>(arguments[3]));
  const timespec slice = EndOfSlice(clock, end);
  const long result = call(reinterpret_cast<long>(&slice));
  // Callers of this wait check their condition again after a signal.
  if (result == -1 && errno == ETIMEDOUT && Now(clock) < end) errno = EINTR;
  return result;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0) time->tv_sec += Ahead(clock);
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* seconds) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != nullptr) *seconds = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* time) {
  static const auto next = Next(pthread_cond_clockwait, "pthread_cond_clockwait");
  const int64_t end = Nanoseconds(*time);
  const timespec slice = EndOfSlice(clock, end);
  const int result = next(condition, mutex, clock, &slice);
  return result == ETIMEDOUT && Now(clock) < end ? 0 : result;  // a spurious wakeup, which callers must handle
}

int poll(pollfd* files, nfds_t count, int milliseconds) {
  static const auto next = Next(poll, "poll");
  return InSlices(milliseconds, [&](int slice) { return next(files, count, slice); });
}

int epoll_wait(int epoll, epoll_event* events, int count, int milliseconds) {
  static const auto next = Next(epoll_wait, "epoll_wait");
  return InSlices(milliseconds, [&](int slice) { return next(epoll, events, count, slice); });
}

// Asio reads the shifted clock when the timer fires, and sets the timer again.
int timerfd_settime(int timer, int flags, const itimerspec* time, itimerspec* before) noexcept {
  static const auto next = Next(timerfd_settime, "timerfd_settime");
  itimerspec sooner = *time;
  if (flags == 0) sooner.it_value = Timespec(std::min(Nanoseconds(time->it_value), kSlice));
  return next(timer, flags, &sooner, before);
}
}
