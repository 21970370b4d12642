// Counts how often a rank of any layout waits between the steps of a stream, on the pretend device.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/layout_runs.h"
#include "tests/support/pretend_device.h"

namespace tessera {

// Returns the waits in the steady steps of all three jobs, summed over all ranks.
inline HostWaits SteadyWaits(const LayoutRuns& runs, const parallel::Layout& layout) {
  constexpr int kSteps = 6, kSteadyFrom = 3;
  std::vector<HostWaits> waits(static_cast<size_t>(layout.ranks()));
  runs.OnRanks(
      layout, at::kDouble,
      [&](const LayoutRuns::Rank& rank) {
        std::vector<runtime::DenoiseJob> jobs = runs.Jobs(rank.family, kSteps);
        for (int step = 0; step < kSteadyFrom; ++step) rank.denoiser.Step(LayoutRuns::Batch(jobs));
        const HostWaits before = PretendDeviceWaits();
        for (int step = kSteadyFrom; step < kSteps; ++step) rank.denoiser.Step(LayoutRuns::Batch(jobs));
        waits[static_cast<size_t>(rank.rank)] = PretendDeviceWaits() - before;
        rank.denoiser.Flush();
        for (const runtime::DenoiseJob& job : jobs) EXPECT_TRUE(runtime::IsFinite(job));
      },
      "", kPretendDevice);
  HostWaits sum;
  for (const HostWaits& rank : waits) {
    sum.waits += rank.waits;
    sum.pageable_copies += rank.pageable_copies;
  }
  return sum;
}

}  // namespace tessera
