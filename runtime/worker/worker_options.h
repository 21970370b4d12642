// The command line of tessera-worker, which the front end writes.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fields/fields.h"
#include "parallel/segment/segment.h"

namespace tessera::runtime {

struct WorkerOptions {
  std::string socket;
  double orphan_grace_period = 0;
  std::string layout = "serial";
  int data = 0;
  int rank = 0;
  int segment = -1;
  std::string measure_products, measure_ranks, cut_captions;
  int captions = -1;
  std::string device = "cpu";
  int threads = 0;
  int64_t rows = 1, width = 1, heads = 1;
};

constexpr auto FieldsOf(const WorkerOptions*) {
  using base::Field;
  using base::Integer;
  using O = WorkerOptions;
  constexpr base::Text kPath{.is_path = true};
  constexpr Integer kDescriptor{-1, INT32_MAX}, kSize{1, INT32_MAX};
  return std::tuple(
      Field("socket", &O::socket, kPath, "Unix socket to listen on; its folder is created"),
      Field("orphan-grace-period", &O::orphan_grace_period, base::Number{0, 3600}, "seconds to outlive the controller"),
      Field("layout", &O::layout, "how the ranks of the group share an image"),
      Field("data", &O::data, Integer{0, parallel::kMaxHostRanks}, "replicas of the layout, for training; 0: none"),
      Field("rank", &O::rank, Integer{0, INT32_MAX}, "rank of this process in its group"),
      Field("segment", &O::segment, kDescriptor, "descriptor of the memory that the group shares; -1: none"),
      Field("measure-products", &O::measure_products,
            "multiply matrices of this dtype, print the operations per second, and exit"),
      Field("measure-ranks", &O::measure_ranks,
            "with the other ranks of the group, measure how fast they compute in this dtype and exchange, and exit"),
      Field("cut-captions", &O::cut_captions, kPath, "find the captions that this model cuts, and exit"),
      Field("captions", &O::captions, kDescriptor, "descriptor of the file with the captions; -1: none"),
      Field("device", &O::device, "device to measure"),
      Field("threads", &O::threads, "CPU threads to measure with; 0: all"),
      Field("rows", &O::rows, kSize, "rows of the matrices"), Field("width", &O::width, kSize, "width of the matrices"),
      Field("heads", &O::heads, kSize, "attention heads"));
}

// Reads words such as "--rank", "2". INVALID_ARGUMENT, with the option, for one that does not exist, has no value, or
// has an invalid one, and if --socket is missing.
absl::StatusOr<WorkerOptions> ReadWorkerOptions(absl::Span<const std::string> words);

// One line for each option.
std::string DescribeWorkerOptions();

}  // namespace tessera::runtime
