// Returns the groups of ranks along the axes of a mesh for a host segment. Does not use LibTorch, because the process
// that starts the ranks creates their segment.
#pragma once

#include <vector>

#include "parallel/plan/mesh.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

// The names of the groups. kSequence is ring x Ulysses, Ulysses inner.
struct MeshGroupName {
  static constexpr char kCfg[] = "cfg";
  static constexpr char kPipe[] = "pipe";
  static constexpr char kSequence[] = "sequence";
  static constexpr char kRing[] = "ring";
  static constexpr char kUlysses[] = "ulysses";
  static constexpr char kTensor[] = "tensor";
  static constexpr char kWorld[] = "world";      // every rank of one data coordinate
  static constexpr char kControl[] = "control";  // the ranks of kWorld, not for their tensors
  // The ring x Ulysses x tensor ranks, which compute the same rows, if these are not all ranks; not for their tensors.
  static constexpr char kRows[] = "rows";
  static constexpr char kData[] = "data";  // for training: the ranks that hold the same part of the model
  static constexpr char kAll[] = "all";    // for training: every rank of the mesh
};

// Returns the groups of more than one rank that a segment for this mesh needs, to make images or to train; training
// needs more.
std::vector<HostGroup> MeshGroups(const Mesh& mesh);
std::vector<HostGroup> TrainingMeshGroups(const Mesh& mesh);

}  // namespace tessera::parallel
