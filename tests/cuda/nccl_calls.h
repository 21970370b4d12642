// Checks from the logs of a group's ranks whether their NCCL calls would succeed on a real NCCL.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"

namespace tessera {

// All ranks of a communicator must request the same collectives in the same order, and every send must have a receive
// of the same count and type.
//
// NCCL requires that a call is captured on all ranks or on none, so all ranks must make and launch the same number of
// graphs.
inline void ExpectMatchingNcclCalls(const std::vector<FakeCudaLog>& logs) {
  for (const FakeCudaLog& log : logs) {
    EXPECT_EQ(log.Count("captured"), logs[0].Count("captured")) << "graphs of a rank and of rank 0";
    EXPECT_EQ(log.Count("graph"), logs[0].Count("graph")) << "launches of a rank and of rank 0";
  }
  using Calls = std::vector<std::string>;
  std::map<std::string, std::map<int64_t, Calls>> collectives;                            // by communicator and rank
  std::map<std::tuple<std::string, int64_t, int64_t>, std::pair<Calls, Calls>> channels;  // sends and receives
  std::map<std::string, std::vector<int64_t>> members;
  for (const FakeCudaLog& log : logs) {
    for (const FakeCudaEvent& made : log.Of("communicator")) members[made.fields[0]].push_back(made.Number(1));
  }
  for (auto& [name, ranks] : members) std::sort(ranks.begin(), ranks.end());
  for (const FakeCudaLog& log : logs) {
    for (const FakeCudaEvent& event : log.Of("transfer")) {
      const std::string &function = event.fields[0], &comm = event.fields[4];
      const std::vector<int64_t>& ranks = members[comm];
      // A rank of a split communicator is logged with its key.
      const int64_t rank = std::find(ranks.begin(), ranks.end(), event.Number(5)) - ranks.begin();
      const int64_t peer = event.Number(3);
      const std::string size = absl::StrCat(event.fields[1], " of type ", event.fields[2]);
      if (function == "ncclSend") {
        channels[{comm, rank, peer}].first.push_back(size);
      } else if (function == "ncclRecv") {
        channels[{comm, peer, rank}].second.push_back(size);
      } else {
        collectives[comm][rank].push_back(absl::StrCat(function, " ", size, " ", peer));
      }
    }
  }
  for (const auto& [comm, ranks] : collectives) {
    EXPECT_EQ(ranks.size(), members[comm].size()) << comm;
    for (const auto& [rank, calls] : ranks) EXPECT_EQ(calls, ranks.begin()->second) << comm << ", rank " << rank;
  }
  for (const auto& [channel, ends] : channels) {
    EXPECT_EQ(ends.first, ends.second) << std::get<0>(channel) << ", from rank " << std::get<1>(channel) << " to rank "
                                       << std::get<2>(channel);
  }
  EXPECT_FALSE(collectives.empty() && channels.empty());
}

}  // namespace tessera
