// How the descriptors that a process may have open are shared out among its listeners, so that connections can use up
// neither what the server needs for its files and workers nor what an operator needs to look at it. Pure.
//
// The kernel gives every new descriptor the lowest free number. A listener that keeps none above its share therefore
// leaves all those above to others, whatever they are used for.
#pragma once

#include <cstdint>

namespace tessera::server {

// The highest number that a connection of each listener may keep. What lies between those of gRPC and HTTP is for HTTP
// whatever gRPC's clients do, which are closed for being idle but not for others; HTTP makes room for gRPC. Above
// HTTP's lie as many as admin may have connections, and above all what is for files, pictures on their way to the disk,
// and workers that start.
//
// A picture that is being sent keeps its file open where the number is at most `results`, which leaves half of gRPC's
// to connections; else its file is opened for each piece, with a number of those that are for files.
struct DescriptorShares {
  int results = 0;
  int grpc = 0;
  int http = 0;
  int admin = 0;
  int admin_connections = 0;
};

// The shares in a process that may have `most` open.
DescriptorShares SharesOf(int64_t most);

}  // namespace tessera::server
