// RankGroups holds one rank's communicators among the ranks that make an image together: its group on each axis of the
// mesh, and the group of all ranks. A group of one is a SingleRank.
#pragma once

#include "parallel/communicator.h"

namespace tessera::parallel {

struct RankGroups {
  // Returns the groups of a rank that is alone.
  static RankGroups Alone(SingleRank& one) {
    return {.cfg = one,
            .pipe = one,
            .sequence = one,
            .ring = one,
            .ulysses = one,
            .tensor = one,
            .world = one,
            .control = one,
            .rows = one};
  }

  Communicator& cfg;       // distributes guidance branches
  Communicator& pipe;      // distributes blocks, in stages
  Communicator& sequence;  // distributes tokens: ring x ulysses, Ulysses inner
  Communicator& ring;      // ranks with the same Ulysses coordinate
  Communicator& ulysses;   // ranks with the same ring coordinate
  Communicator& tensor;    // distributes every matrix
  Communicator& world;     // all of these ranks, in mesh order
  Communicator& control;   // the same ranks, always in host memory: verdicts, descriptions, agreements
  Communicator& rows;      // ranks that compute the same rows (ring x Ulysses x tensor), also in host memory
};

}  // namespace tessera::parallel
