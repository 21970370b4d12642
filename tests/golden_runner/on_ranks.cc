#include "tests/golden_runner/on_ranks.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "parallel/host/mesh_communicators.h"
#include "runtime/denoising/mesh_forward.h"
#include "tests/support/thread_ranks.h"

namespace tessera::golden {

absl::StatusOr<Report> RunOnRanks(const parallel::Layout& layout, int64_t heads, int64_t blocks,
                                  const std::function<absl::StatusOr<Report>(const RankPlace&)>& run) {
  const parallel::LayoutModel model{
      .heads = static_cast<int>(heads), .blocks = static_cast<int>(blocks), .max_cfg_branches = 2};
  if (absl::Status valid = parallel::CheckLayout(layout, model); !valid.ok()) {
    return absl::UnimplementedError(absl::StrCat("the layout is not valid: ", std::string(valid.message())));
  }
  if (!layout.lossless()) return absl::UnimplementedError("goldens are of whole steps");
  const int ranks = layout.ranks();
  parallel::SingleRank one;
  // Stages get equal numbers of blocks, because the costs of blocks are not known here.
  const std::vector<int> bounds =
      runtime::StageBounds(std::vector<double>(static_cast<size_t>(blocks), 1), layout.mesh.pipe);
  if (ranks == 1) return run({.groups = parallel::RankGroups::Alone(one), .share = {}, .stage_bounds = bounds});

  const absl::StatusOr<parallel::Mesh> mesh = parallel::Mesh::Create(layout.mesh, ranks);
  if (!mesh.ok()) return mesh.status();
  std::vector<absl::StatusOr<Report>> reports(static_cast<size_t>(ranks), absl::UnknownError("not run"));
  ThreadRanksOptions options{.groups = parallel::MeshGroups(*mesh)};
  try {
    RunRanks(
        ranks,
        [&](ThreadRank& thread) {
          const int rank = thread.rank();
          const parallel::MeshCommunicators communicators(at::kCPU, thread.shared_segment(), rank,
                                                          options.communicator);
          absl::StatusOr<Report>& report = reports[static_cast<size_t>(rank)];
          report = run({.groups = communicators.groups(),
                        .share = runtime::ShareOf(*mesh, rank, bounds),
                        .stage_bounds = bounds});
          if (!report.ok()) throw std::runtime_error(std::string(report.status().message()));
        },
        options);
  } catch (const std::exception&) {
    // The error of the rank that failed is the result. Other ranks have echoes of it, or no report.
    for (const absl::StatusOr<Report>& report : reports) {
      if (!report.ok() && !absl::IsUnknown(report.status())) return report.status();
    }
    throw;
  }
  Report all;
  for (int rank = 0; rank < ranks; ++rank) {
    const absl::StatusOr<Report>& report = reports[static_cast<size_t>(rank)];
    if (!report.ok()) return report.status();
    all.Add(absl::StrCat("rank ", rank, ": "), *report);
  }
  return all;
}

}  // namespace tessera::golden
