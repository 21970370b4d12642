// tessera-worker runs one rank. tessera starts it and controls it through its socket. It writes nothing to standard
// output unless it is called only for its version or for the speed of a device. It can also only find the captions that
// a model cuts.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/enum_names.h"
#include "base/file.h"
#include "base/machine_processors.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "control/control_channel.h"
#include "control/worker_version.h"
#include "models/loading/host_allocator.h"
#include "models/loading/weight_memory.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/segment/effort_meter.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/device/device.h"
#include "runtime/device/nccl_log.h"
#include "runtime/engine/make_engine.h"
#include "runtime/engine/product_rate.h"
#include "runtime/engine/rank_rates.h"
#include "runtime/training/cut_captions.h"
#include "runtime/worker/heartbeat.h"

namespace tessera::runtime {
namespace {

// To be called before the process has threads.
absl::StatusOr<WorkerRank> TakePlace(const std::string& layout, int data, int rank, int segment) {
  ASSIGN_OR_RETURN(parallel::Layout parsed, parallel::ParseLayout(layout));
  WorkerRank place = {.layout = parsed, .data = data, .rank = rank};
  if (rank >= place.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", rank, "; valid values are 0 to ", place.ranks() - 1));
  }
  if (segment >= 0) {
    ASSIGN_OR_RETURN(std::shared_ptr<parallel::HostSegment> mapped, parallel::HostSegment::Map(segment));
    if (mapped->ranks() != place.ranks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment has ", mapped->ranks(), " ranks; it must have ", place.ranks()));
    }
    place.segment = std::move(mapped);
    if (place.ranks() > 1) place.nccl_log = std::make_shared<const NcclLog>();
  } else if (place.ranks() > 1) {
    return absl::InvalidArgumentError("segment is missing; several ranks need one");
  }
  return place;
}

struct Products {
  std::string dtype, device = "cpu";
  int threads = 0;  // 0: all processors of the machine
  int64_t rows = 1, width = 1, heads = 1;
};

absl::StatusOr<at::ScalarType> DtypeOf(const std::string& name) {
  const std::optional<control::Dtype> dtype = base::EnumOf<control::Dtype>(name);
  if (!dtype.has_value()) return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", name));
  return ScalarTypeOf(*dtype);
}

void UseThreads(int threads) {
  at::set_num_threads(threads > 0 ? threads
                                  : std::min<int>(at::get_num_threads(), base::ReadMachineProcessors().available()));
}

absl::Status PrintProductRate(const Products& products) {
  ASSIGN_OR_RETURN(const at::ScalarType dtype, DtypeOf(products.dtype));
  ASSIGN_OR_RETURN(const at::Device device, OpenDevice(products.device));
  UseThreads(products.threads);
  try {
    std::printf("%.6e\n", MeasureProductRate(device, dtype, products.rows, products.width));
  } catch (const c10::Error& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  }
  return absl::OkStatus();
}

// Reads captions from the file of that descriptor and replaces them by the answer.
absl::Status AnswerCutCaptions(const std::string& model, int descriptor) {
  const std::string path = absl::StrCat("/proc/self/fd/", descriptor);
  ASSIGN_OR_RETURN(const std::string captions, base::ReadWholeFile(path, "the captions", size_t{1} << 34));
  ASSIGN_OR_RETURN(const std::string answer, FindCutCaptions(model, captions));
  std::ofstream file(path);
  if (!(file << answer).flush()) return absl::UnavailableError("the answer cannot be written");
  return absl::OkStatus();
}

// The other ranks of the place measure at the same time. The first rank prints the rates of all.
absl::Status PrintRankRates(const WorkerRank& place, const std::string& dtype_name, const Products& products) {
  ASSIGN_OR_RETURN(const at::ScalarType dtype, DtypeOf(dtype_name));
  if (products.width % products.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("width is ", products.width, "; it must be a multiple of heads, ", products.heads));
  }
  ASSIGN_OR_RETURN(const at::Device device, OpenDevice(products.device));
  ASSIGN_OR_RETURN(const kernels::DeviceIdentity identity, IdentifyDevice(products.device));
  UseThreads(products.threads);
  try {
    parallel::SingleRank alone;
    std::optional<parallel::MeshCommunicators> communicators;
    if (place.segment != nullptr) {
      communicators.emplace(device, place.segment, place.rank, parallel::HostCommunicatorOptions());
      communicators->WarmUp();
    }
    const bool several = communicators.has_value();
    RankRates rates = MeasureRankRates(ShapeFor(device, dtype, products.width, products.heads),
                                       several ? communicators->groups().world : alone,
                                       several ? communicators->groups().control : alone);
    rates.device = identity.device;
    if (place.rank == 0) std::printf("%s\n", JsonOf(rates).c_str());
  } catch (const c10::Error& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  } catch (const parallel::CommError& error) {
    return absl::UnavailableError(error.what());
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  models::KeepFreedMemory();
  models::UseHostAllocator();

  CLI::App app("Runs a model for tessera. The tessera program starts this process; do not start it yourself.");
  control::ChannelOptions options;
  double orphan_grace_period = 0;
  std::string layout = "serial";
  int data = 0, rank = 0, segment = -1;
  app.add_option("--socket", options.socket_path, "Unix socket to listen on; its folder is created")->required();
  app.add_option("--orphan-grace-period", orphan_grace_period, "Seconds to outlive the controller")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--layout", layout, "How the ranks of the group share an image");
  app.add_option("--data", data, "Replicas of the layout, for training")->check(CLI::Range(1, parallel::kMaxHostRanks));
  app.add_option("--rank", rank, "Rank of this process in its group")->check(CLI::NonNegativeNumber);
  app.add_option("--segment", segment, "Descriptor of the memory that the group shares")->check(CLI::NonNegativeNumber);
  Products products;
  app.add_option("--measure-products", products.dtype,
                 "Multiply matrices of this dtype, print the operations per second, and exit");
  std::string rated_dtype;
  app.add_option(
      "--measure-ranks", rated_dtype,
      "With the other ranks of the group, measure how fast they compute in this dtype and exchange, and exit");
  std::string cutting_model;
  int captions = -1;
  app.add_option("--cut-captions", cutting_model, "Find the captions that this model cuts, and exit");
  app.add_option("--captions", captions, "Descriptor of the file with the captions")->check(CLI::NonNegativeNumber);
  app.add_option("--device", products.device, "Device to measure");
  app.add_option("--threads", products.threads, "CPU threads to measure with");
  app.add_option("--rows", products.rows, "Rows of the matrices")->check(CLI::PositiveNumber);
  app.add_option("--width", products.width, "Width of the matrices")->check(CLI::PositiveNumber);
  app.add_option("--heads", products.heads, "Attention heads")->check(CLI::PositiveNumber);
  app.set_version_flag("--version", control::WorkerVersion());
  CLI11_PARSE(app, argc, argv);
  options.orphan_grace_period = absl::Seconds(orphan_grace_period);
  options.sends_results = rank == 0;

  const absl::StatusOr<WorkerRank> place = TakePlace(layout, data, rank, segment);
  absl::Status served = place.status();
  if (!products.dtype.empty()) {
    served = PrintProductRate(products);
  } else if (!cutting_model.empty()) {
    served = AnswerCutCaptions(cutting_model, captions);
  } else if (place.ok() && !rated_dtype.empty()) {
    served = PrintRankRates(*place, rated_dtype, products);
  } else if (place.ok()) {
    std::optional<parallel::EffortMeter> meter;
    if (place->segment != nullptr) {
      BeatWithEveryOperator(place->segment->Beats(rank));
      meter.emplace(place->segment, rank);
    }
    const std::unique_ptr<control::CommandHandler> engine = MakeEngine(*place);
    served = control::ServeControlChannel(*engine, options);
  }
  if (!served.ok()) std::fprintf(stderr, "tessera-worker: %s\n", std::string(served.message()).c_str());
  return served.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tessera::runtime

int main(int argc, char** argv) {
  tessera::base::OpenStandardStreams();
  tessera::base::EndProcess(tessera::runtime::Main(argc, argv), /*lost=*/1);
}
