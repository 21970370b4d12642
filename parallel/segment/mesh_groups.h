// The groups of ranks along the axes of a mesh, as a host segment holds them. Free of LibTorch: the process that starts
// the ranks makes their segment.
#pragma once

#include <vector>

#include "parallel/plan/mesh.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

// Their names. kSequence is ring x Ulysses, Ulysses inner.
struct MeshGroupName {
  static constexpr char kCfg[] = "cfg";
  static constexpr char kPipe[] = "pipe";
  static constexpr char kSequence[] = "sequence";
  static constexpr char kRing[] = "ring";
  static constexpr char kUlysses[] = "ulysses";
  static constexpr char kTensor[] = "tensor";
  static constexpr char kWorld[] = "world";      // every rank of one data coordinate
  static constexpr char kControl[] = "control";  // the same ranks, apart from their tensors
  // Apart from their tensors too: ring x Ulysses x tensor, where these are not all ranks. They compute the same rows.
  static constexpr char kRows[] = "rows";
  static constexpr char kData[] = "data";  // of training: the ranks that hold the same part of the model
  static constexpr char kAll[] = "all";    // of training: every rank of the mesh
};

// The groups of more than one rank that a segment for this mesh needs: to make images, and to train, of which the
// second are more.
std::vector<HostGroup> MeshGroups(const Mesh& mesh);
std::vector<HostGroup> TrainingMeshGroups(const Mesh& mesh);

}  // namespace tessera::parallel
