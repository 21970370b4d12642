// Where a component other than the transformer lives. LibTorch-free.
#pragma once

namespace tessera {

enum class ComponentPlacement {
  kRank0,     // on the first rank's device
  kCpu,       // in the first rank's host memory
  kUnloaded,  // read from its files for each use and dropped after it
};

}  // namespace tessera
