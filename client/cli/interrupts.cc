#include "client/cli/interrupts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/threads/start_thread.h"
#include "client/cli/exit_code.h"

namespace tessera::client {

Interrupts::Interrupts() : stop_(eventfd(0, EFD_CLOEXEC)) {
  sigemptyset(&signals_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = base::StartThread([this] { Run(); });
}

Interrupts::~Interrupts() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
}

bool Interrupts::requested() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return requested_;
}

void Interrupts::Run() {
  // nohup makes SIGHUP ignored. A blocked signal is delivered here nevertheless.
  struct sigaction of_hang_up = {};
  const bool ignores_hang_ups = sigaction(SIGHUP, nullptr, &of_hang_up) == 0 && of_hang_up.sa_handler == SIG_IGN;
  const int arrivals = signalfd(-1, &signals_, SFD_CLOEXEC);
  pollfd events[] = {{stop_, POLLIN, 0}, {arrivals, POLLIN, 0}};
  while (true) {
    if (poll(events, 2, -1) < 0 && errno == EINTR) continue;
    if (events[0].revents != 0) break;
    signalfd_siginfo arrival;
    if (read(arrivals, &arrival, sizeof(arrival)) != sizeof(arrival)) break;
    std::lock_guard<std::mutex> lock(mutex_);
    const bool hang_up = arrival.ssi_signo == SIGHUP;
    if (hang_up && hang_up_) {
      hang_up_();
      continue;
    }
    if (hang_up && ignores_hang_ups) continue;
    hung_up_ = hang_up && !requested_;
    if (requested_) _exit(static_cast<int>(ExitCode::kInterrupted));
    requested_ = true;
    if (react_) react_();
  }
  close(arrivals);
}

Interrupts::HangUps::HangUps(Interrupts& interrupts, std::function<void()> react) : interrupts_(interrupts) {
  std::lock_guard<std::mutex> lock(interrupts_.mutex_);
  if (std::exchange(interrupts_.hung_up_, false)) {
    interrupts_.requested_ = false;
    react();
  }
  interrupts_.hang_up_ = std::move(react);
}

Interrupts::HangUps::~HangUps() {
  std::lock_guard<std::mutex> lock(interrupts_.mutex_);
  interrupts_.hang_up_ = nullptr;
}

Interrupts::Reaction::Reaction(Interrupts& interrupts, std::function<void()> react) : interrupts_(interrupts) {
  std::lock_guard<std::mutex> lock(interrupts_.mutex_);
  if (interrupts_.requested_) react();
  interrupts_.react_ = std::move(react);
}

Interrupts::Reaction::~Reaction() {
  std::lock_guard<std::mutex> lock(interrupts_.mutex_);
  interrupts_.react_ = nullptr;
}

}  // namespace tessera::client
