// tessera-worker runs one rank. tessera starts it and controls it through its socket. It writes nothing to standard
// output unless it is called only for its version or for the speed of a device. It can also only find the captions that
// a model cuts.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/fields/enum_names.h"
#include "base/files/file.h"
#include "base/files/standard_streams.h"
#include "base/macros/status_macros.h"
#include "control/parameters/load_parameters.h"
#include "control/protocol/control_channel.h"
#include "control/protocol/worker_version.h"
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
#include "runtime/group/heartbeat.h"
#include "runtime/training/cut_captions.h"
#include "runtime/worker/worker_options.h"

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

absl::StatusOr<at::ScalarType> DtypeOf(const std::string& name) {
  const std::optional<control::Dtype> dtype = base::EnumOf<control::Dtype>(name);
  if (!dtype.has_value()) return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", name));
  return ScalarTypeOf(*dtype);
}

absl::Status PrintProductRate(const WorkerOptions& products) {
  ASSIGN_OR_RETURN(const at::ScalarType dtype, DtypeOf(products.measure_products));
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
absl::Status PrintRankRates(const WorkerRank& place, const WorkerOptions& products) {
  ASSIGN_OR_RETURN(const at::ScalarType dtype, DtypeOf(products.measure_ranks));
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

absl::Status Serve(const WorkerOptions& options) {
  if (!options.measure_products.empty()) return PrintProductRate(options);
  if (!options.cut_captions.empty()) return AnswerCutCaptions(options.cut_captions, options.captions);
  ASSIGN_OR_RETURN(const WorkerRank place, TakePlace(options.layout, options.data, options.rank, options.segment));
  if (!options.measure_ranks.empty()) return PrintRankRates(place, options);
  std::optional<parallel::EffortMeter> meter;
  if (place.segment != nullptr) {
    BeatWithEveryOperator(place.segment->Beats(options.rank));
    meter.emplace(place.segment, options.rank);
  }
  const std::unique_ptr<control::CommandHandler> engine = MakeEngine(place);
  return control::ServeControlChannel(*engine, {.socket_path = options.socket,
                                                .orphan_grace_period = absl::Seconds(options.orphan_grace_period),
                                                .sends_results = options.rank == 0});
}

int Main(int argc, char** argv) {
  models::KeepFreedMemory();
  models::UseHostAllocator();

  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--version") != words.end()) {
    std::printf("%s\n", control::WorkerVersion().c_str());
    return 0;
  }
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::printf("Runs a model for tessera. The tessera program starts this process; do not start it yourself.\n%s",
                DescribeWorkerOptions().c_str());
    return 0;
  }
  const absl::StatusOr<WorkerOptions> options = ReadWorkerOptions(words);
  const absl::Status served = options.ok() ? Serve(*options) : options.status();
  if (!served.ok()) std::fprintf(stderr, "tessera-worker: %s\n", std::string(served.message()).c_str());
  return served.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tessera::runtime

int main(int argc, char** argv) {
  tessera::base::OpenStandardStreams();
  tessera::base::EndProcess(tessera::runtime::Main(argc, argv), /*lost=*/1);
}
