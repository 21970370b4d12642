#include "client/cli/train/product_rate.h"

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/macros/status_macros.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kMeasurementTimeout = absl::Minutes(2);

}  // namespace

absl::StatusOr<double> MeasureProductRate(const ProductRateOptions& options, Interrupts& interrupts) {
  ASSIGN_OR_RETURN(const std::unique_ptr<server::WorkerProcess> worker,
                   server::WorkerProcess::Start(
                       {.executable = server::WorkerExecutable(),
                        .arguments = {"--measure-products", options.dtype, "--device", options.device, "--threads",
                                      absl::StrCat(options.threads), "--rows", absl::StrCat(options.rows), "--width",
                                      absl::StrCat(options.width)}}));
  const Interrupts::Reaction reaction(interrupts, [&] { worker->Kill(); });
  const bool ended = worker->WaitForExit(kMeasurementTimeout);
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!ended) return absl::UnavailableError(absl::StrCat("a product on ", options.device, " takes minutes"));
  const std::string said(absl::StripAsciiWhitespace(worker->LastOutput()));
  double rate = 0;
  if (absl::SimpleAtod(said, &rate) && rate > 0) return rate;
  return absl::UnavailableError(said);
}

}  // namespace tessera::client
