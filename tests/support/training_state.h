// Spreads a small model's training state over ranks in all ways that a training run can.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/loading/param_table.h"
#include "parallel/communicator.h"
#include "runtime/training/checkpoints/checkpoint.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/param_pieces.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera::runtime {

struct Topology {
  std::string name;
  int ranks = 1;
  int tensor = 1;               // size of the innermost axis; ranks with equal coordinates on it are replicas
  bool splits_state = false;    // replicas share the rows of moments and averages
  bool splits_weights = false;  // replicas share the rows of the weights, too
};

inline const std::vector<Topology>& Topologies() {
  static const auto* topologies =
      new std::vector<Topology>{{.name = "1"},
                                {.name = "data=2", .ranks = 2},
                                {.name = "tensor=2", .ranks = 2, .tensor = 2},
                                {.name = "tensor=4", .ranks = 4, .tensor = 4},
                                {.name = "ulysses=2", .ranks = 2},
                                {.name = "data=2,tensor=2", .ranks = 4, .tensor = 2},
                                {.name = "state over 2", .ranks = 2, .splits_state = true},
                                {.name = "everything over 3", .ranks = 3, .splits_state = true, .splits_weights = true},
                                {.name = "state over 2, tensor=2", .ranks = 4, .tensor = 2, .splits_state = true}};
  return *topologies;
}

// Returns parameters of every kind: without dimensions, replicated, column- and row-parallel, packed, with fewer rows
// than ranks.
inline std::vector<models::ParamSpec> SomeParameters() {
  using models::LinearRole;
  return {{.name = "scale", .shape = {}},
          {.name = "norm.weight", .shape = {7}},
          {.name = "conv.weight", .shape = {5, 2, 2, 2}},
          {.name = "q.weight", .shape = {12, 6}, .role = LinearRole::kColumn},
          {.name = "q.bias", .shape = {12}, .role = LinearRole::kColumn},
          {.name = "few.weight", .shape = {2, 3}, .role = LinearRole::kColumn},
          {.name = "out.weight", .shape = {6, 12}, .role = LinearRole::kRow},
          {.name = "packed.weight", .shape = {8, 17}, .role = LinearRole::kRow, .parts = {5, 12}},
          {.name = "fused.weight", .shape = {17, 3}, .role = LinearRole::kColumn, .parts = {5, 12}}};
}

struct Kind {
  std::string prefix;
  at::ScalarType type;
  bool is_weight;
};

inline std::vector<Kind> Kinds() {
  return {{"transformer.", at::kBFloat16, true},
          {"master.", at::kFloat, false},
          {"exp_avg.", at::kFloat, false},
          {"exp_avg_sq.", at::kFloat, false},
          {"ema.", at::kDouble, false}};
}

// Returns a whole tensor, whose numbers differ by kind and parameter.
inline at::Tensor WholeTensor(const Kind& kind, const models::ParamSpec& spec, uint64_t seed) {
  const uint64_t key = seed + std::hash<std::string>()(kind.prefix + spec.name);
  return Random(spec.shape, key).to(kind.type);
}

// Returns a tensor rank's part, computed independently of the code under test.
inline at::Tensor LocalPart(const at::Tensor& whole, const models::ParamSpec& spec, const models::TensorShard& shard) {
  const auto cut = [&](const at::Tensor& part, int64_t dim) {
    const int64_t size = part.size(dim);
    return part.slice(dim, size * shard.rank / shard.size, size * (shard.rank + 1) / shard.size);
  };
  if (spec.role == models::LinearRole::kReplicated) return whole;
  const int64_t dim = spec.role == models::LinearRole::kColumn ? 0 : 1;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part :
       spec.parts.empty() ? std::vector<at::Tensor>{whole} : whole.split_with_sizes(spec.parts, dim)) {
    parts.push_back(cut(part, dim));
  }
  return at::cat(parts, dim);
}

// The pieces of one rank, and the tensors that they are views of.
struct RankState {
  std::vector<Piece> pieces;
  std::map<std::string, at::Tensor> tensors;
};

inline RankState StateOf(const Topology& topology, int rank, uint64_t seed) {
  const models::TensorShard shard{.rank = rank % topology.tensor, .size = topology.tensor};
  const int replica = rank / topology.tensor, replicas = topology.ranks / topology.tensor;
  RankState state;
  for (const Kind& kind : Kinds()) {
    for (const models::ParamSpec& spec : SomeParameters()) {
      at::Tensor local = LocalPart(WholeTensor(kind, spec, seed), spec, shard);
      RowRange rows;
      if (kind.is_weight ? topology.splits_weights : topology.splits_state) {
        const std::vector<int64_t> shares = parallel::EvenRows(local.dim() == 0 ? 1 : local.size(0), replicas);
        for (int before = 0; before < replica; ++before) rows.begin += shares[before];
        rows.end = rows.begin + shares[replica];
        if (local.dim() > 0) local = local.slice(0, rows.begin, rows.end);
      }
      local = local.clone();
      const std::string name = kind.prefix + spec.name;
      if (local.dim() > 0 || rows.begin == 0) state.tensors[name] = local;
      for (Piece& piece : PiecesOf(name, spec, shard, local, rows)) state.pieces.push_back(std::move(piece));
    }
  }
  return state;
}

inline const CheckpointState kSomeState{.step = 100,
                                        .json = R"({"optimizer_steps":100,"cursor":1234567890123,"lr":0.1})"};

inline absl::Status WriteOn(const Topology& topology, const std::string& folder,
                            const CheckpointState& state = kSomeState, uint64_t seed = 1) {
  absl::Status status;
  std::mutex mutex;
  RunRanks(topology.ranks, [&](ThreadRank& rank) {
    const RankState held = StateOf(topology, rank.rank(), seed);
    const absl::Status written = WriteCheckpoint(folder, state, held.pieces, rank.world());
    const std::lock_guard lock(mutex);
    status.Update(written);
  });
  return status;
}

// Returns the differences from the expected state, bit for bit, that ranks of that topology find; empty if there are
// none.
inline std::vector<std::string> ProblemsOn(const Topology& topology, const std::string& checkpoint,
                                           const CheckpointState& expected_state = kSomeState, uint64_t seed = 1) {
  std::vector<std::string> problems;
  std::mutex mutex;
  RunRanks(topology.ranks, [&](ThreadRank& rank) {
    const RankState expected = StateOf(topology, rank.rank(), seed), read = StateOf(topology, rank.rank(), seed + 1);
    const absl::StatusOr<CheckpointState> state = ReadCheckpoint(checkpoint, read.pieces, rank.world());
    const std::lock_guard lock(mutex);
    const auto problem = [&](const auto&... parts) {
      problems.push_back(absl::StrCat("rank ", rank.rank(), ": ", parts...));
    };
    if (!state.ok()) {
      problem(state.status().message());
      return;
    }
    if (state->step != expected_state.step || state->json != expected_state.json) {
      problem("step ", state->step, ", state ", state->json);
    }
    for (const auto& [name, tensor] : expected.tensors) {
      if (!at::equal(tensor, read.tensors.at(name))) problem(name, " differs");
    }
  });
  return problems;
}

}  // namespace tessera::runtime
