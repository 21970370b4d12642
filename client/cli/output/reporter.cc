#include "client/cli/output/reporter.h"

#include "client/cli/output/json_reporter.h"
#include "client/cli/output/text_reporter.h"

namespace tessera::client {

std::unique_ptr<Reporter> MakeReporter(const ReporterOptions& options) {
  if (options.json) return std::make_unique<JsonReporter>();
  return std::make_unique<TextReporter>(options);
}

ExitCode Finish(const std::unique_ptr<Reporter>& reporter, const Interrupts& interrupts,
                const absl::StatusOr<ExitCode>& result) {
  if (result.ok()) return *result;
  const absl::Status shown = interrupts.requested() ? absl::CancelledError("interrupted") : result.status();
  const ExitCode code = ExitCodeFor(StageOf(result.status()), shown);
  reporter->OnError(shown, code);
  return code;
}

}  // namespace tessera::client
