#include "control/protocol/socket_folder.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/threads/start_thread.h"

namespace tessera::control {

absl::StatusOr<std::unique_ptr<SocketFolder>> SocketFolder::Create(const std::string& socket_path) {
  const size_t slash = socket_path.rfind('/');
  if (slash == std::string::npos || slash == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket '", socket_path, "' must be in a named folder other than /"));
  }
  if (socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket's path has ", socket_path.size(), " bytes, at most ",
                                                   sizeof(sockaddr_un::sun_path) - 1, " are possible"));
  }
  const std::string folder = socket_path.substr(0, slash);
  if (mkdir(folder.c_str(), 0700) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make the socket's folder: ", std::strerror(errno)));
  }
  return std::unique_ptr<SocketFolder>(new SocketFolder(socket_path, folder));
}

void SocketFolder::Remove() const {
  // Another thread may bind the socket between the two calls, at most once.
  do {
    unlink(socket_path_.c_str());
  } while (rmdir(folder_.c_str()) != 0 && errno == ENOTEMPTY && access(socket_path_.c_str(), F_OK) == 0);
}

sigset_t BlockTermination() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);  // the kernel sends it to a stopped process whose parent has ended
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

TerminationThread::TerminationThread(const SocketFolder& folder, const sigset_t& blocked)
    : stop_(eventfd(0, EFD_CLOEXEC)), signals_(blocked) {
  termination_ = signalfd(-1, &signals_, SFD_CLOEXEC);
  thread_ = base::StartThread([this, &folder] { Run(folder); });
}

TerminationThread::~TerminationThread() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(termination_);
  close(stop_);
}

void TerminationThread::Run(const SocketFolder& folder) {
  pollfd events[] = {{stop_, POLLIN, 0}, {termination_, POLLIN, 0}};
  while (poll(events, 2, -1) < 0 && errno == EINTR) {
  }
  if (events[1].revents == 0) return;
  folder.Remove();
  signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  raise(SIGTERM);
}

}  // namespace tessera::control
