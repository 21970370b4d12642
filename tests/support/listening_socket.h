// Connects to the Unix socket of a program that is starting.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "base/files/file_descriptor.h"
#include "tests/support/wait_until.h"

namespace tessera {

// Connects as soon as a program listens there. Fails the test after a timeout.
inline base::FileDescriptor ConnectWhenListening(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX};
  std::strcpy(address.sun_path, path.c_str());
  base::FileDescriptor connection;
  WaitUntil("somebody listens", [&] {
    connection = base::FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  });
  return connection;
}

}  // namespace tessera
