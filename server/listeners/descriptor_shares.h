// DescriptorShares divides a process's file descriptors among its listeners, so that connections cannot use up those
// that the server needs for its files and workers, or those that an operator needs to inspect it. Pure.
//
// The kernel gives every new descriptor the lowest free number. Therefore a listener that keeps no number above its
// share leaves all numbers above it to other uses.
#pragma once

#include <cstdint>

namespace tessera::server {

// Each value is the highest descriptor number that a connection of the listener may keep. The numbers between gRPC's
// and HTTP's shares are always available to HTTP: gRPC closes its clients' connections when they are idle, but not to
// make room for others, while HTTP closes connections to make room for gRPC. Above HTTP's share are as many numbers as
// admin may have connections, and above those the numbers for files, pictures that are being stored, and workers that
// start.
//
// A picture that is being sent keeps its file open if the number is at most `results`, which leaves half of gRPC's
// share to connections. Otherwise its file is opened for each read, with a number of those for files.
struct DescriptorShares {
  int results = 0;
  int grpc = 0;
  int http = 0;
  int admin = 0;
  int admin_connections = 0;
};

// Returns the shares of a process that may have `most` open descriptors.
DescriptorShares SharesOf(int64_t most);

}  // namespace tessera::server
