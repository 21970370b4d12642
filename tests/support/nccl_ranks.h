// Runs ranks that are threads and exchange tensors of the pretend device through LateNccl (late_nccl.h).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/layout.h"
#include "parallel/segment/mesh_groups.h"
#include "tests/support/pretend_device.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

inline void OnNcclRanks(const std::string& text,
                        const std::function<void(int rank, const parallel::RankGroups& groups)>& body,
                        const parallel::NcclOptions& nccl = {}) {
  const parallel::Layout layout = *parallel::ParseLayout(text);
  const parallel::Mesh mesh = *parallel::Mesh::Create(layout.mesh, layout.ranks());
  const ThreadRanksOptions options{.groups = parallel::MeshGroups(mesh)};
  RunRanks(
      layout.ranks(),
      [&](ThreadRank& thread) {
        const at::NoGradGuard no_gradients;
        const parallel::MeshCommunicators communicators(kPretendDevice, thread.shared_segment(), thread.rank(),
                                                        options.communicator, nccl);
        TORCH_CHECK(communicators.uses_nccl(), communicators.why_not_nccl());
        body(thread.rank(), communicators.groups());
      },
      options);
}

// Returns the error that ended the ranks: the first that is not an echo of another rank's error.
inline parallel::CommError::Details NcclErrorOf(
    const std::string& layout, const std::function<void(int rank, const parallel::RankGroups& groups)>& body,
    const parallel::NcclOptions& nccl = {}) {
  try {
    OnNcclRanks(layout, body, nccl);
  } catch (const parallel::CommError& error) {
    return error.details();
  }
  ADD_FAILURE() << "the ranks ended without an error";
  return {};
}

}  // namespace tessera
