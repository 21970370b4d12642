// SwappedBlocks chooses the blocks of a transformer that wait in main memory. Header-only.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::control {

// Which blocks of a transformer are kept in main memory if `swapped` of them are. They are spread evenly and include
// the last block, so that up to half of the blocks alternate with resident ones, whose computation hides the copy.
inline std::vector<int64_t> SwappedBlocks(int64_t blocks, int64_t swapped) {
  std::vector<int64_t> chosen;
  for (int64_t block = 0; block < blocks; ++block) {
    if ((block + 1) * swapped / blocks > block * swapped / blocks) chosen.push_back(block);
  }
  return chosen;
}

}  // namespace tessera::control
