// One rank's place among the ranks that make an image together: for each axis of the mesh its group, and the group of
// them all. A group of one is a SingleRank.
#pragma once

#include "parallel/communicator.h"

namespace tessera::parallel {

struct RankGroups {
  // A rank that is alone.
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

  Communicator& cfg;       // guidance branches are dealt over it
  Communicator& pipe;      // blocks, in stages
  Communicator& sequence;  // tokens: ring x ulysses, Ulysses inner
  Communicator& ring;      // of the same Ulysses coordinate
  Communicator& ulysses;   // of the same ring coordinate
  Communicator& tensor;    // every matrix
  Communicator& world;     // all of these ranks, by their number in the mesh
  Communicator& control;   // the same ranks, in host memory whatever the device: verdicts, descriptions, agreements
  Communicator& rows;      // those that compute the same rows (ring x Ulysses x tensor), in host memory too
};

}  // namespace tessera::parallel
